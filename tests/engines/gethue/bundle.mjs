// Makes one script of page.js and the modules of gethue that it uses, as they came from npm.
// node bundle.mjs NODE_MODULES PAGE TARGET
import { createRequire } from 'node:module';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';

const [modules, page, target] = process.argv.slice(2);
const require = createRequire(join(modules, 'any.js'));
const esbuild = require('esbuild');
const { parseComponent } = require('vue-template-compiler');

// A component file is a template, a script and styles; Vue compiles the template in the browser.
const components = {
  name: 'vue components',
  setup(build) {
    build.onLoad({ filter: /\.vue$/ }, async ({ path }) => {
      const { template, script } = parseComponent(await readFile(path, 'utf8'));
      const shown = script.content.replace(/export default class (\w+)/, 'class $1');
      const name = /export default class (\w+)/.exec(script.content)[1];
      const contents = `${shown}\n${name}.options.template = ${JSON.stringify(template.content)};\nexport default ${name};`;
      return { contents, loader: 'ts' };
    });
  }
};

await esbuild.build({
  entryPoints: [page],
  outfile: target,
  bundle: true,
  format: 'iife',
  logLevel: 'error',
  // The package imports its own modules by paths from its folder `src`, without a prefix.
  nodePaths: [modules, join(modules, 'gethue', 'src')],
  alias: { vue: join(modules, 'vue', 'dist', 'vue.esm.js') },
  loader: { '.html': 'text', '.png': 'dataurl' },
  tsconfigRaw: { compilerOptions: { experimentalDecorators: true, useDefineForClassFields: false } },
  define: { 'process.env.NODE_ENV': '"production"', global: 'window' },
  plugins: [components]
});
