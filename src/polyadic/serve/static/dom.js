// Build elements. All text is set as text, never as markup: names of classes and files are not trusted.

const SVG = "http://www.w3.org/2000/svg";

function build(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, x] of Object.entries(value)) key.startsWith("--") ? element.style.setProperty(key, x) : (element.style[key] = x);
    else if (name in element && !(element instanceof SVGElement) && !name.includes("-") && name !== "list" && name !== "form")
      element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, props, ...children) => build(document.createElement(tag), props, children);
export const s = (tag, props, ...children) => build(document.createElementNS(SVG, tag), props, children);
export const byId = (id) => document.getElementById(id);

export const percent = (x) => (x === null || x === undefined ? "" : x >= 0.095 ? `${Math.round(100 * x)}%` : `${(100 * x).toFixed(1)}%`);
export const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

/** Replace the content and put the focus back to the element with the same data-key. */
export function refill(element, ...children) {
  const key = element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  element.replaceChildren(...children.flat(Infinity).filter(Boolean));
  if (key) element.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
}

// Okabe and Ito's colours, which people with colour blindness tell apart, and a text colour of enough contrast on each
const COLOURS = [["#0072b2", "#fff"], ["#d55e00", "#000"], ["#009e73", "#000"], ["#cc79a7", "#000"], ["#e69f00", "#000"], ["#56b4e9", "#000"]];

const seen = new Map(); // class -> number

/** The colour of a class: given at first sight, so that it stays when boxes come and go. */
export function colour(name) {
  if (!seen.has(name)) seen.set(name, seen.size);
  return COLOURS[seen.get(name) % COLOURS.length];
}

export const forgetColours = () => seen.clear();

export function download(content, name) {
  const url = URL.createObjectURL(content);
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const pen = document.createElement("canvas").getContext("2d");
const widths = new Map();

/** The width of a text on the photo, in pixels. */
export function textWidth(text, bold = false) {
  const key = `${bold} ${text}`;
  if (!widths.has(key)) {
    if (widths.size > 2000) widths.clear();
    pen.font = `${bold ? "600 13px" : "12.5px"} ${getComputedStyle(document.documentElement).fontFamily}`;
    widths.set(key, pen.measureText(text).width);
  }
  return widths.get(key);
}
