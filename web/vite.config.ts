import { defineConfig } from "vitest/config";

/** Where `npm run dev` sends the calls of the API. */
const SERVER = process.env.QUERYSERVER_URL ?? "http://127.0.0.1:8888";

export default defineConfig({
  // The server puts its URL prefix before the addresses in index.html; scripts find each other by relative addresses.
  base: "./",
  build: {
    target: "es2024",
    // The content security policy forbids data URLs.
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    chunkSizeWarningLimit: 600,
  },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  resolve: {
    alias: {
      react: "preact/compat",
      "react-dom": "preact/compat",
    },
  },
  server: { proxy: { "/api": SERVER, "/desktop": SERVER } },
  test: {
    environment: "happy-dom",
    include: ["src/**/*.test.{ts,tsx}"],
    // @testing-library removes what a test rendered after each test, if this hook is global.
    globals: true,
    // The alias of react applies to packages only if Vite transforms them.
    server: { deps: { inline: ["@tanstack/react-virtual"] } },
    restoreMocks: true,
    unstubGlobals: true,
  },
});
