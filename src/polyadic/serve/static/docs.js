// The API, shown from its OpenAPI document; examples can be sent.

import { blob, get, onConnection } from "./api.js";
import { byId, h } from "./dom.js";

onConnection((online, text, refused) => {
  byId("banner").textContent = refused ? "The server has another token: open the address that it printed." : text;
  byId("banner").hidden = online;
});

const pretty = (value) => JSON.stringify(value, null, 1).replace(/\n\s+(?=[\d.\-\]])/g, " ");

function example(path, value) {
  const result = h("pre", { hidden: true, tabIndex: 0 });
  const send = h("button", { type: "button", className: "small", onclick: async () => {
    result.hidden = false;
    try {
      const content = await blob(path, value);
      result.textContent = /json|svg/.test(content.type) ? (await content.text()).slice(0, 20_000) : `${content.type}, ${content.size} bytes`;
    } catch (error) {
      result.textContent = error.message;
    }
  } }, "Send");
  return h("div", { className: "example" }, h("pre", { tabIndex: 0 }, pretty(value)), send, result);
}

const api = await get("/api/openapi.json");
byId("back").href = `/${location.search}`;
byId("docs").append(
  h("p", null, "JSON over the same values as the Python API. Every request needs the header ", h("code", null, "Authorization: Bearer TOKEN"), " (the token of this page's address), a POST ", h("code", null, "Content-Type: application/json"), ". Errors have the key ", h("code", null, "error"), ". The document: ", h("code", null, "GET /api/openapi.json"), "."),
  ...Object.entries(api.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => {
    const body = operation.requestBody?.content["application/json"];
    const name = body?.schema.$ref?.split("/").at(-1);
    return h("section", null, h("h2", null, h("code", null, `${method.toUpperCase()} ${path}`)), h("p", null, operation.summary),
      body ? h("details", null, h("summary", null, `Schema: ${name}`), h("pre", { tabIndex: 0 }, pretty(api.components.schemas[name]))) : null,
      Object.values(body?.examples ?? {}).map((x) => example(path, x.value)));
  })),
  h("h2", null, "Parts of the messages"),
  ...Object.entries(api.components.schemas).map(([name, schema]) => h("details", null, h("summary", null, name), h("pre", { tabIndex: 0 }, pretty(schema)))));
document.body.dataset.ready = "true";
