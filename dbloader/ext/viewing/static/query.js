/** Change the query of a search by its words. A word is a condition, or a group in parentheses. */
import {escaped, go, make, state, stores} from "./app.js";
import {empty} from "./icons.js";

const QUOTED = String.raw`"(?:[^"\\]|\\.)*"`, VALUE = String.raw`(?:${QUOTED}|[^\s()"])+`, NAME = String.raw`[\p{L}_][\p{L}\p{N}_.-]*`;
/** Tokens, as in dbloader/ext/queries/parse.py: a keyword, a parenthesis, the - before a condition, a comparison, a part of a name. */
const TOKEN = new RegExp(String.raw`([oO][rR]|[aA][nN][dD]|[nN][oO][tT])(?=[\s()]|$)|[()]|-(?=\S)|` +
  String.raw`(?<key>${QUOTED}|${NAME})\s*(?<sign><=|>=|==|!=|<>|[<>=~:])\s*(?<value>${VALUE})?|${VALUE}|\S`, "gsu");

/** A value without quotes; a query compares with null, none and nan only in quotes. */
const PLAIN = /^(?!(null|none|nan)$)[\w.-]+$/i;

/** Return the conditions on both sides of each `or` of a query. A group in parentheses is one condition, also after `not` or `-`.
 * Comparisons get the spelling of this page: no spaces, and quotes only where they are needed. */
function alternatives(text) {
  const found = [[]];
  let [condition, depth, end] = ["", 0, 0];
  for (const {0: token, 1: letters, groups: {key, sign, value = ""}, index} of text.matchAll(TOKEN)) {
    const keyword = letters?.toLowerCase();
    depth += {"(": 1, ")": -1}[token] ?? 0;
    const isJoin = !depth && !condition && (keyword === "or" || keyword === "and");
    if (isJoin && keyword === "or") found.push([]);
    if (!isJoin) {
      const own = {"==": "=", "<>": "!="}[sign] ?? sign, bare = value.replace(/^"(.*)"$/s, (all, inner) => PLAIN.test(inner) ? inner : all);
      condition += (condition && text.slice(end, index)) + (sign ? `${key}${own}${bare}` : token);
      if (depth <= 0 && token !== "-" && keyword !== "not") {
        found.at(-1).push(condition);
        condition = "";
      }
    }
    end = index + token.length;
  }
  if (condition) found.at(-1).push(condition); // an unclosed parenthesis
  return found;
}

/** Return the conditions of a query, which must all hold. A query with an `or` outside of parentheses is one condition. */
export function words(text) {
  const found = alternatives(text);
  return found.length > 1 ? [`(${found.map((each) => each.join(" ")).join(" or ")})`] : found[0];
}

/** Return a text as a value in a query. */
export const quoted = (text) => (PLAIN.test(text) ? String(text) : `"${String(text).replace(/["\\]/g, "\\$&")}"`);

/** Return the word that finds the records with a label. */
export function classWord(store, label) {
  const name = stores[store].classes?.[label ?? -1];
  return name === undefined ? `label:${label ?? "none"}` : `class:${quoted(name)}`;
}

/** Return the words for classes in a word such as `class:a` or `(class:a or class:b)`; [] for other words. */
export function classesIn(word) {
  const all = alternatives(word.replace(/^\((.*)\)$/s, "$1"));
  return all.every((each) => each.length === 1 && /^(class|label):/.test(each[0])) ? all.flat() : [];
}

/** Return the name of a field as a query contains it: in quotes if needed. */
export const key = (name) => (new RegExp(`^${NAME}$`, "u").test(name) ? name : quoted(name));

/** Return a pattern for the words that compare a field. A field of bools may stand alone. */
export const comparing = (name, isBool = false) =>
  new RegExp(`^(-|not\\s+)*${key(name).replace(/[.*+?^$()[\]{}|\\]/g, "\\$&")}\\s*([<>=~]|!=${isBool ? "|$" : ""})`);

/** Replace the words of the query for which `isOld(word)` is true by other words, and show the result. */
export function filter(isOld, added) {
  go({view: null, index: null, at: null, q: [...words(state().q).filter((word) => !isOld(word)), ...added].join(" ")});
}

/** Return a button for each condition of the query, which removes it. */
export const chips = () => words(state().q).map((word, place, all) => make("button", {title: "Remove this condition", onclick: () =>
  go({q: all.filter((_, other) => other !== place).join(" "), at: null})}, escaped(word), make("span", {ariaHidden: "true"}, " ×")));

/** Return a button that shows all records. */
export const unfiltered = () => make("button", {class: "first", onclick: () => go({q: null, at: null})}, "Remove all conditions");

/** Return what a page shows instead of the records of a wrong search. The side bar shows the mistake. */
export const mistaken = () => empty("nothing", "This search has a mistake", "Correct it at the top, or:", unfiltered());
