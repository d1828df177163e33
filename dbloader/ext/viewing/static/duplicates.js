/** Groups of duplicates, and the searches for duplicates in a store and between stores. */
import {amount, api, ask, counted, errorOf, escaped, link, make, notice, restart, stores, title} from "./app.js";
import {pictured} from "./icons.js";
import {locked, mark} from "./marks.js";
import {code} from "./record.js";

const COUNT = 20; // groups in one request
const MARKED = 1000; // indices in one query, which has at most 10,000 letters
const ASK_MS = 500; // between requests for the progress of a search
/** For each search: the column of its result, what is shown before it and while it runs, and its button. */
const SEARCHES = {
  duplicates: ["duplicates.extra", "These images have not been searched for duplicates.", "Searching for duplicates…",
    "Search for duplicates"],
  leaks: ["duplicates.leak", "The stores have not been searched for images that are in both.",
    "Searching for images that are in both stores…", "Search for shared images"],
};

/** Return a link to a record: its picture, lines of text and its class. The class is red if `differs`. */
export const recordLink = (store, index, lines, label, differs = false) =>
  link({view: "record", store, index, q: null, at: null}, pictured(store, index), ...lines.map((line) => make("span", {}, line)),
    label === null ? null : make("span", {class: differs ? "error" : ""}, escaped(String(label))));

/** Return in words how near a copy is. */
export const nearness = ({difference, bits}) =>
  (difference === "same" ? "same file" : bits ? `${bits} of 128 bits differ` : "looks identical");

const failed = (head, signal, {message}) => signal.aborted || Object.assign(head, {className: "error", textContent: message});

/** Return the button that starts or cancels a search, its progress, and the command that does the same. `head` shows the state of
 * the search. Once there is a result, `show(result)` is called, and the buttons are hidden. `what` is "duplicates" or "leaks". */
export function searcher(store, what, head, signal, show) {
  const [column, before, during, start] = SEARCHES[what], path = `/api/${store}/${what}`;
  const run = make("button", {...locked(store), onclick: async () => {
    const reply = await ask(path, undefined, {method: "POST", body: run.value});
    if (!reply.ok) notice(escaped(await errorOf(reply)));
    await look();
  }});
  const [meter, number, terminal] = [make("progress", {ariaLabel: "Searched images"}), make("span", {class: "muted"}), make("div")];
  const all = make("div", {hidden: true}, make("p", {class: "row"}, run, meter, number), terminal);
  const look = async () => {
    try {
      const {search: {running, done, of, problem}, found, command} = await api(path, {count: 0}, signal);
      all.hidden = found !== null;
      if (found && !stores[store].columns[column]) Object.assign(stores, await api("/api/stores", {}, signal));
      if (found) return void await show(found);
      head.textContent = running ? during : escaped(problem) || before;
      [run.value, run.textContent, run.className] = running ? ["stop", "Cancel", ""] : ["start", start, "first"];
      Object.assign(meter, {hidden: !running, max: of, value: done});
      number.textContent = running ? `${counted(done)} of ${counted(of)} images` : "";
      terminal.replaceChildren(...running ? [] : [make("p", {class: "muted"}, "Or in a terminal:"), code(command)]);
      if (running) setTimeout(() => signal.aborted || look(), ASK_MS);
    } catch (error) {
      failed(head, signal, error);
    }
  };
  look();
  return all;
}

class Duplicates extends HTMLElement {
  async show({store}) {
    title("Duplicates");
    const signal = restart(this);
    const [head, list] = [make("p", {role: "status"}, "Loading…"), make("div", {class: "cards two"})];
    const more = make("button", {hidden: true}, "Show more");
    const only = make("input", {type: "checkbox"}), choice = make("label", {hidden: true}, only, " only groups whose labels differ");
    const drop = make("button", {hidden: true, ...locked(store), onclick: async () => {
      const all = [...list.querySelectorAll("input:checked")].map((box) => box.value);
      const queries = [];
      for (let start = 0; start < all.length; start += MARKED) queries.push(`index:${all.slice(start, start + MARKED).join(",")}`);
      await mark(store, queries, {drop: true}, all.length);
    }}, "Drop the checked images");
    const all = link({view: null, at: null, sort: null, q: "duplicates.extra"}, "Show all duplicates in the grid");
    const read = async () => {
      const start = list.childElementCount;
      try {
        const {found} = await api(`/api/${store}/duplicates`, {start, count: COUNT, differing: only.checked || null}, signal);
        if (list.childElementCount === start) list.append(...found.groups.map((group) => this.group(store, group)));
        drop.hidden = all.hidden = !list.childElementCount;
        more.hidden = list.childElementCount >= (only.checked ? found.differing : found.total);
        choice.hidden = !found.differing;
        head.textContent = found.total ?
          `${amount(found.duplicates, "duplicate")} in ${amount(found.total, "group")}. Duplicates have the same bytes, or ` +
            `fingerprints that differ in at most ${found.distance} of 128 bits. The first image of a group is compared with the ` +
            `others. Groups with different labels: ${counted(found.differing)}.` :
          "No two images are equal or nearly equal.";
      } catch (error) {
        failed(head, signal, error);
        more.hidden = true;
      }
    };
    all.hidden = true;
    more.onclick = read;
    only.onchange = () => { list.replaceChildren(); read(); };
    this.replaceChildren(make("h1", {}, "Duplicates"), head, searcher(store, "duplicates", head, signal, read),
      make("p", {class: "row"}, choice, drop, all), list, more);
  }

  group(s, {index, name, count, others, ...group}) {
    const rest = others.map((row) => make("div", {},
      recordLink(s, row.index, [counted(row.index), nearness(row)], row.class, row.class !== group.class),
      make("label", {}, make("input", {type: "checkbox", checked: row.difference === "same", value: row.index}), " drop")));
    const first = recordLink(s, index, [counted(index), "first"], group.class);
    const left = count - others.length;
    return make("section", {class: "group card"}, make("h2", {}, `${escaped(name ?? "without a name")} and ${counted(count)} more`),
      make("div", {class: "pairs"}, first, ...rest), left ? make("p", {class: "muted"}, `and ${counted(left)} more`) : null);
  }
}
customElements.define("db-duplicates", Duplicates);
