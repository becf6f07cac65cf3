// The page of the API description: Swagger UI, with a filter that finds fields, curl for each call, and the error codes.
"use strict";

const JSON_BODY = "application/json";
const PARTS = "multipart/form-data";
const prefix = document.body.dataset.prefix;
const filter = document.getElementById("filter");

const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

/** What `ref` (`#/components/…`) names in the document. */
const resolved = (description, part) => {
  if (!part?.$ref) return part;
  return part.$ref.slice(2).split("/").reduce((found, key) => found?.[key], description);
};

/** Names of all fields of a schema, at any depth, and the words that their enumerations allow. */
const fieldsOf = (description, schema, into, seen = new Set()) => {
  const whole = resolved(description, schema);
  if (!whole || typeof whole !== "object" || seen.has(whole)) return;
  seen.add(whole);
  for (const word of whole.enum || []) into.add(String(word));
  for (const [name, field] of Object.entries(whole.properties || {})) {
    into.add(name);
    fieldsOf(description, field, into, seen);
  }
  const parts = [whole.items, whole.additionalProperties, ...(whole.anyOf || []), ...(whole.oneOf || []), ...(whole.allOf || [])];
  for (const part of parts) fieldsOf(description, part, into, seen);
};

/** Puts the JSON form of each body first: Swagger UI shows the first one, and only of JSON all that the schema says. */
const putJsonFirst = (description) => {
  for (const call of Object.values(description.paths).flatMap(Object.values)) {
    const content = call.requestBody?.content;
    if (content?.[JSON_BODY]) call.requestBody.content = { [JSON_BODY]: content[JSON_BODY], ...content };
  }
};

/** Makes "X or null" one type, and drops defaults of null: the tree of fields is easier to read so. */
const simplify = (part) => {
  if (Array.isArray(part)) return part.forEach(simplify);
  if (!part || typeof part !== "object") return undefined;
  const [first, second, ...more] = part.anyOf || [];
  if (second?.type === "null" && !more.length && typeof first.type === "string") {
    delete part.anyOf;
    Object.assign(part, { ...first, ...part, type: [first.type, "null"] });
  }
  if (part.default === null) delete part.default;
  return Object.values(part).forEach(simplify);
};

/** The document as it is shown; schemas are named, so that the parts of a union are. */
const prepared = (description) => {
  putJsonFirst(description);
  for (const [name, schema] of Object.entries(description.components.schemas)) {
    schema.title = name;
    simplify(schema);
  }
  return description;
};

/** The text in which the filter searches, by `method path`. */
const searchTexts = (description) => {
  const texts = new Map();
  for (const [path, calls] of Object.entries(description.paths)) {
    for (const [method, call] of Object.entries(calls)) {
      const words = new Set([method, path, call.operationId, call.summary, call.description, ...(call.tags || [])]);
      for (const parameter of call.parameters || []) {
        words.add(parameter.name).add(parameter.description);
        fieldsOf(description, parameter.schema, words);
      }
      for (const media of Object.values(call.requestBody?.content || {})) fieldsOf(description, media.schema, words);
      for (const [status, answer] of Object.entries(call.responses)) {
        const shape = resolved(description, answer);
        if (status < "400") for (const media of Object.values(shape.content || {})) fieldsOf(description, media.schema, words);
        for (const header of Object.keys(shape.headers || {})) words.add(header);
      }
      texts.set(`${method} ${path}`, [...words].join("\n").toLowerCase());
    }
  }
  return texts;
};

const wordsOf = (phrase) => phrase.toLowerCase().split(/\s+/).filter(Boolean);

/** The body of a call as an example: of a JSON body its example, of an upload its fields with a file. */
const exampleBody = (description, content) => {
  if (content[JSON_BODY]) return [JSON_BODY, content[JSON_BODY].example ?? {}];
  if (!content[PARTS]) return [undefined, undefined];
  const values = { ...content[PARTS].example };
  const schema = resolved(description, content[PARTS].schema);
  const fields = Object.assign({}, ...[schema, ...(schema.allOf || [])].map((part) => resolved(description, part).properties));
  for (const name of Object.keys(values)) {
    if (fields[name]?.format === "binary") values[name] = new File([], "sales.csv", { type: "text/csv" });
  }
  return [PARTS, values];
};

/** A curl command that makes a call with the examples of the document, for a shell where TOKEN is set. */
const curlOf = ({ fn, Im }, description, path, method) => {
  const call = description.paths[path][method];
  const parameters = {};
  for (const { name, in: place, required, example, schema } of call.parameters || []) {
    if (required) parameters[`${place}.${name}`] = example ?? schema.default ?? "";
  }
  const [requestContentType, requestBody] = exampleBody(description, call.requestBody?.content || {});
  const request = fn.buildRequest({
    spec: description, pathName: path, method, operationId: call.operationId, parameters, requestContentType, requestBody,
    contextUrl: location.href, server: location.origin + prefix, responseContentType: "",
  });
  // Without `Accept` a call answers with its usual type; a list of all types would only make the command long.
  const { accept, ...headers } = request.headers;
  if (call.security?.length) headers.Authorization = "Bearer $TOKEN";
  const answers = Object.keys(resolved(description, call.responses["200"])?.content || {});
  const text = fn.requestSnippetGenerator_curl_bash(Im.fromJS({ ...request, headers }));
  const isStream = answers.includes("text/event-stream");
  const isFile = answers.includes("application/octet-stream");
  return text
    .replace("'Authorization: Bearer $TOKEN'", '"Authorization: Bearer $TOKEN"')
    .replace("curl ", isStream ? "curl -N " : isFile ? "curl -OJ " : "curl ");
};

/** Swagger UI, changed by its own means: what the filter finds, a command before each form, no list of servers. */
const plugin = (description, texts) => (system) => ({
  fn: {
    opsFilter: (tagged, phrase) => {
      const words = wordsOf(phrase);
      const isFound = (one) => words.every((word) => texts.get(`${one.get("method")} ${one.get("path")}`)?.includes(word));
      return tagged
        .map((tag) => tag.set("operations", tag.get("operations").filter(isFound)))
        .filter((tag) => tag.get("operations").size > 0);
    },
  },
  wrapComponents: {
    ServersContainer: () => () => null,
    FilterContainer: () => () => null,
    // From 150 rows on Swagger UI draws only those in sight: links into the page and the search of the browser would miss the rest.
    operations: (Original, { React }) => (props) => {
      const tagged = props.specSelectors.taggedOperations();
      if (tagged.size === 0) return React.createElement(Original, props);
      const Tag = props.getComponent("OperationTag");
      const Call = props.getComponent("OperationContainer", true);
      const drawnCall = (tag) => (op) => {
        const [path, method] = [op.get("path"), op.get("method")];
        return React.createElement(Call, { key: `${method} ${path}`, op, path, method, tag, specPath: op.get("specPath") });
      };
      const drawnTag = (tagObj, tag) =>
        React.createElement(Tag, { ...props, key: tag, tagObj, tag, specUrl: props.specSelectors.url() },
          React.createElement("div", { className: "operation-tag-content" }, tagObj.get("operations").map(drawnCall(tag)).toArray()));
      return React.createElement("div", null, tagged.map(drawnTag).valueSeq().toArray());
    },
    parameters: (Original, { React, Im }) => (props) => {
      const [path, method] = props.pathMethod;
      const text = curlOf({ fn: system.getSystem().fn, Im: system.Im }, description, path, method);
      return React.createElement(React.Fragment, null,
        React.createElement("div", { className: "curl-of-call" },
          React.createElement("h4", null, "curl"), React.createElement("pre", null, text)),
        React.createElement(Original, props));
    },
  },
});

/** The token of a login or renewal that the reader makes on this page goes with all later calls of the page. */
const keepToken = (ui, response) => {
  if (response.ok && /\/api\/v1\/token\/(auth|refresh)\/?$/.test(new URL(response.url, location.href).pathname)) {
    const access = response.obj?.access;
    if (typeof access === "string") ui.preauthorizeApiKey("bearer", access);
  }
  return response;
};

/** A sentence whose words in backticks are code. */
const withCode = (text) =>
  text.split("`").map((part, index) => (index % 2 ? make("code", { textContent: part }) : part));

const showCodes = (codes) => {
  const section = document.getElementById("codes");
  for (const { code, http, meaning } of codes) {
    const link = make("a", { href: `#code-${code}` }, make("code", { textContent: code }));
    section.querySelector("tbody").append(make("tr", { id: `code-${code}` },
      make("td", {}, link), make("td", { textContent: http.join(", ") }), make("td", {}, ...withCode(meaning))));
  }
  section.hidden = false;
};

/** The list of calls and the headings of the guide get ids, so that a link may name them. */
const nameParts = () => {
  document.querySelector("#reference .opblock-tag-section").closest("section").id = "calls";
  for (const heading of document.querySelectorAll(".info h2, .info h3")) {
    heading.id ||= heading.textContent.trim().toLowerCase().replace(/[^a-z0-9]+/g, "-");
  }
};

const applyFilter = (ui, texts) => {
  const phrase = filter.value.trim();
  ui.layoutActions.updateFilter(phrase);
  const words = wordsOf(phrase);
  const has = (text) => words.every((word) => text.includes(word));
  let codes = 0;
  for (const row of document.querySelectorAll("#codes tbody tr")) {
    row.hidden = !has(row.textContent.toLowerCase());
    codes += row.hidden ? 0 : 1;
  }
  document.getElementById("codes").hidden = codes === 0;
  const calls = [...texts.values()].filter(has).length;
  document.getElementById("found").textContent = phrase ? `${calls} of ${texts.size} calls, error codes: ${codes}` : "";
  document.body.classList.toggle("filtered", Boolean(phrase));
  const address = new URL(location.href);
  if (phrase) address.searchParams.set("filter", phrase);
  else address.searchParams.delete("filter");
  if (address.href !== location.href) history.replaceState(null, "", address);
};

/** The element that the address names: a call (`#/tag/name`), a part of the guide, or an error code. */
const goToHash = () => {
  const hash = decodeURIComponent(location.hash.slice(1));
  const id = hash.startsWith("/") ? `operations${hash.replaceAll("/", "-")}` : hash;
  if (id) document.getElementById(id)?.scrollIntoView();
};

/** Calls `then` once Swagger UI has drawn the calls. */
const whenDrawn = (then) => {
  const isDrawn = () => document.querySelector("#reference .opblock") !== null;
  if (isDrawn()) return then();
  const observer = new MutationObserver(() => {
    if (!isDrawn()) return;
    observer.disconnect();
    then();
  });
  return observer.observe(document.getElementById("reference"), { childList: true, subtree: true });
};

const show = (description) => {
  // Swagger UI takes every hash for a call and rewrites it, so it gets to see those of calls only.
  const part = location.hash.startsWith("#/") ? "" : location.hash;
  if (part) history.replaceState(null, "", location.pathname + location.search);
  const texts = searchTexts(description);
  showCodes(description["x-error-codes"] || []);
  const ui = SwaggerUIBundle({
    spec: description,
    dom_id: "#reference",
    deepLinking: true,
    docExpansion: "list",
    displayOperationId: true,
    displayRequestDuration: true,
    defaultModelRendering: "model",
    defaultModelExpandDepth: 4,
    defaultModelsExpandDepth: -1,
    persistAuthorization: false,
    validatorUrl: null,
    plugins: [plugin(description, texts)],
    responseInterceptor: (response) => keepToken(ui, response),
  });
  // For tests: the commands of all calls.
  window.curlOfEach = () => {
    const { fn, Im } = ui.getSystem();
    const each = Object.entries(description.paths).flatMap(([path, calls]) => Object.keys(calls).map((method) => [method, path]));
    return Object.fromEntries(each.map(([method, path]) => [`${method} ${path}`, curlOf({ fn, Im }, description, path, method)]));
  };
  whenDrawn(() => {
    nameParts();
    document.getElementById("state").hidden = true;
    filter.value = new URLSearchParams(location.search).get("filter") || "";
    if (filter.value) applyFilter(ui, texts);
    filter.addEventListener("input", () => applyFilter(ui, texts));
    addEventListener("hashchange", () => {
      if (location.hash.startsWith("#/")) ui.layoutActions.parseDeepLinkHash(location.hash);
      setTimeout(goToHash);
    });
    if (part) location.replace(part);
    else goToHash();
    document.body.dataset.ready = "true";
  });
};

const dark = matchMedia("(prefers-color-scheme: dark)");
const applyScheme = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
applyScheme();
dark.addEventListener("change", applyScheme);

fetch(`${prefix}/api/schema?format=json`)
  .then((answer) => (answer.ok ? answer.json() : Promise.reject(new Error(`HTTP ${answer.status}`))))
  .then((description) => show(prepared(description)))
  .catch((problem) => {
    document.getElementById("state").textContent = `The description could not be loaded: ${problem.message}. Load the page again.`;
    throw problem;
  });
