/** Keys: one handler for all views, and the help that lists them. */
import {find, make, state} from "./app.js";

const bound = new Map();

/** Register keys, as in `keys({x: ["Select the record", run]}, "grid")`. They work while this view is shown; without a view, always.
 * Keys have the names of KeyboardEvent.key. The help shows the texts, but no key whose text is "". */
export function keys(bindings, view = null) {
  for (const [key, [text, run]] of Object.entries(bindings)) bound.set(key, [...(bound.get(key) ?? []), {text, run, view}]);
}

export function pressed(event) {
  const target = event.target;
  if (event.defaultPrevented || event.altKey || find("dialog[open]:not(#changes)")) return;
  const key = event.ctrlKey || event.metaKey ? `Ctrl-${event.key}` : event.key;
  if (find("#changes").open && !key.startsWith("Ctrl-")) return;
  if (target.closest("input:not([type=checkbox]), textarea, select")) {
    if (event.key === "Escape") find("#main").focus(); // the keys of the page work again
    return;
  }
  if ((event.key === "Enter" || event.key === " ") && target.closest("a, button, summary")) return;
  const {view, open} = state();
  const all = bound.get(key) ?? [];
  const binding = [view, open === undefined ? view : "record", null].map((name) => all.find((each) => each.view === name)).find(Boolean);
  if (!binding) return;
  event.preventDefault();
  binding.run(event);
}

const QUERY = [["maine_012", "a part of the name"], ["class:cat", "a class; with spaces: class:\"maine coon\""],
  ["width<256 height>=1000", "both must match; also aspect and bytes, and = <= >"], ["index:1,5-9", "these indices"],
  ["(class:cat or class:dog)", "one of these must match"], ["score>0.5 split=train caption~\"red car\"", "fields that have a column"],
  ["damaged repaired", "what the conversion did with the file"], ["-class:dog", "not this class"]];

/** Show the keys of the view, and the words of a search. */
export function help() {
  const {view} = state();
  const table = (rows, tag) => make("table", {}, ...rows.map(([name, text]) =>
    make("tr", {}, make("th", {scope: "row"}, make(tag, {}, name)), make("td", {}, text))));
  const rows = [...bound].flatMap(([key, all]) => {
    const shown = key.replace("Arrow", "").replace("Ctrl-Z", "Ctrl+Shift+Z").replace("Ctrl-z", "Ctrl+Z").replace("1", "1 to 9");
    const binding = [view, null].map((name) => all.find((each) => each.view === name)).find(Boolean);
    return binding?.text ? [[shown, binding.text]] : [];
  });
  find("#keys").replaceChildren(make("h2", {id: "keys-title"}, "Keys of this page"), table(rows, "kbd"),
    make("h2", {}, "Words of a search"), table(QUERY, "code"),
    make("footer", {}, make("button", {onclick: () => find("#keys").close()}, "Close")));
  find("#keys").showModal();
  find("#keys").scrollTop = 0; // showModal() gives the focus to the last button, and so scrolls down
}
