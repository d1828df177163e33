/** The words of a query: how the page changes a search. */
import {go, state, stores} from "./app.js";

/** Return the words of a query. Spaces in quotes or parentheses do not separate words. */
export function words(text) {
  const found = [""];
  let depth = 0;
  for (const part of text.match(/"(?:[^"\\]|\\.)*"?|\s+|[()]|[^\s"()]+/g) ?? []) {
    depth += {"(": 1, ")": -1}[part] ?? 0;
    if (depth || part.trim()) found.push(found.pop() + part);
    else found.push("");
  }
  return found.filter(Boolean);
}

/** Return a text as a value in a query. */
export const quoted = (text) => (/^[\w.-]+$/.test(text) ? String(text) : `"${String(text).replace(/["\\]/g, "\\$&")}"`);

/** Return the word of a query for a label. */
export function classWord(store, label) {
  const name = stores[store].classes?.[label ?? -1];
  return name === undefined ? `label:${label ?? "none"}` : `class:${quoted(name)}`;
}

/** Return the words for classes in a word such as `class:a` or `(class:a or class:b)`; [] for other words. */
export function classesIn(word) {
  const all = words(word.replace(/^\((.*)\)$/, "$1"));
  return all.every((each, n) => (n % 2 ? each === "or" : /^(class|label):/.test(each))) ? all.filter((_, n) => n % 2 === 0) : [];
}

/** Return a pattern for the words that compare a column. */
export const comparing = (name) => new RegExp(`^-?${name.replace(/[.*+?^$()[\]{}|\\]/g, "\\$&")}\\s*[<>=~]`);

/** Replace the words of the query for which `isOld(word)` is true by other words, and show the result. */
export function filter(isOld, added) {
  go({view: null, index: null, at: null, q: [...words(state().q).filter((word) => !isOld(word)), ...added].join(" ")});
}

/** Show the records whose column is from `from` to below `to`; null for an open end. */
export function filterRange(name, from, to) {
  filter((word) => comparing(name).test(word), [...(from === null ? [] : [`${name}>=${from}`]), ...(to === null ? [] : [`${name}<${to}`])]);
}
