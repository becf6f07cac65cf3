"use strict";

const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

const shape = (schema, schemas, depth = 0) => {
  if (!schema) return "";
  if (schema.$ref) return shape(schemas[schema.$ref.split("/").pop()], schemas, depth);
  if (schema.anyOf) return schema.anyOf.map((one) => shape(one, schemas, depth)).join(" | ");
  if (schema.type === "array") return `[${shape(schema.items, schemas, depth)}]`;
  if (schema.type === "object" && schema.properties && depth < 4) {
    const pad = "  ".repeat(depth + 1);
    const lines = Object.entries(schema.properties).map(
      ([name, value]) => `${pad}"${name}": ${shape(value, schemas, depth + 1)}`,
    );
    return `{\n${lines.join(",\n")}\n${"  ".repeat(depth)}}`;
  }
  return schema.type || "any";
};

const fields = (title, rows) => {
  if (!rows.length) return "";
  const table = make("table");
  for (const [name, type, text] of rows) {
    table.append(make("tr", {}, make("td", {}, make("code", { textContent: name })),
      make("td", { textContent: type }), make("td", { textContent: text })));
  }
  return make("section", {}, make("h4", { textContent: title }), table);
};

const operation = (method, path, spec, { schemas, responses }) => {
  const body = make("div", { className: "body" }, make("p", { textContent: spec.description || "" }));
  body.append(fields("Parameters", (spec.parameters || []).map(
    (one) => [one.name, `${one.in} ${shape(one.schema, schemas)}`, one.description || ""])));
  const content = spec.requestBody?.content || {};
  const sent = (content["application/json"] || Object.values(content)[0])?.schema;
  if (sent) body.append(make("h4", { textContent: "Fields" }), make("pre", { textContent: shape(sent, schemas) }));
  for (const [status, told] of Object.entries(spec.responses || {})) {
    const answer = told.$ref ? responses[told.$ref.split("/").pop()] : told;
    const schema = answer.content?.["application/json"]?.schema;
    body.append(make("h4", { textContent: `${status} ${answer.description || ""}` }));
    if (schema && status < 300) body.append(make("pre", { textContent: shape(schema, schemas) }));
  }
  return make("details", {},
    make("summary", {}, make("span", { className: "method", textContent: method.toUpperCase() }),
      make("span", { className: "path", textContent: path }),
      make("span", { className: "what", textContent: spec.summary || "" })), body);
};

const show = (documentation, wanted) => {
  const groups = new Map();
  for (const [path, methods] of Object.entries(documentation.paths)) {
    for (const [method, spec] of Object.entries(methods)) {
      if (!`${path} ${spec.summary}`.toLowerCase().includes(wanted)) continue;
      const group = (spec.tags || ["other"])[0];
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(operation(method, path, spec, documentation.components));
    }
  }
  const main = document.getElementById("operations");
  main.replaceChildren();
  for (const [name, list] of groups) main.append(make("h2", { textContent: name }), ...list);
};

fetch("/api/schema").then((answer) => answer.json()).then((documentation) => {
  document.getElementById("summary").textContent = `${documentation.info.summary} Version ${documentation.info.version}.`;
  const filter = document.getElementById("filter");
  filter.addEventListener("input", () => show(documentation, filter.value.toLowerCase()));
  show(documentation, "");
});
