/** Groups of duplicates, and the search for them. */
import {amount, api, ask, counted, errorOf, escaped, link, load, make, notice, picture, stores, title} from "./app.js";
import {mark} from "./marks.js";
import {code} from "./record.js";

const COUNT = 20; // groups in one request
const MARKED = 1000; // indices in one query, which has at most 10,000 letters
const ASK_MS = 500; // between requests for the progress of a search

/** Return a link to a record: its picture, a text and its class. The class is red if `differs`. */
function pictured(store, index, text, label, differs) {
  const image = make("img", {alt: "", loading: "lazy"});
  load(image, picture("thumb", store, index, {px: 160}), () => image.replaceWith(make("span", {class: "error"}, "cannot be shown")));
  return link({view: "record", store, index, q: null, at: null}, image, make("span", {}, text),
    label === null ? null : make("span", {class: differs ? "error" : ""}, escaped(String(label))));
}

class Duplicates extends HTMLElement {
  async show({store}) {
    title("Duplicates");
    this.controller?.abort();
    const {signal} = (this.controller = new AbortController());
    const [head, list, more] = [make("p", {role: "status"}, "Loading…"), make("div", {class: "groups"}), make("button", {hidden: true}, "Show more")];
    const only = make("input", {type: "checkbox"}), choice = make("label", {hidden: true}, only, " only groups whose labels differ");
    const {why_not: why} = stores[store].marks, off = {disabled: why !== null, title: escaped(why ?? "")};
    const drop = make("button", {hidden: true, ...off, onclick: async () => {
      const all = [...list.querySelectorAll("input:checked")].map((box) => box.value);
      const queries = [];
      for (let start = 0; start < all.length; start += MARKED) queries.push(`index:${all.slice(start, start + MARKED).join(",")}`);
      await mark(store, queries, {drop: true}, all.length);
    }}, "Drop the checked images");
    const all = link({view: null, at: null, sort: null, q: "duplicates.extra"}, "Show all duplicates in the grid");
    const run = make("button", {...off, onclick: async () => {
      const reply = await ask(`/api/${store}/duplicates`, undefined, {method: "POST", body: run.value});
      if (!reply.ok) notice(escaped(await errorOf(reply)));
      await read();
    }});
    const meter = make("progress", {ariaLabel: "Searched images"}), number = make("span"), terminal = make("div");
    const search = make("div", {hidden: true}, make("p", {class: "row"}, run, meter, number), terminal);
    this.replaceChildren(make("h1", {}, "Duplicates"), head, search, make("p", {class: "row"}, choice, drop, all), list, more);
    all.hidden = true;
    const read = async () => {
      const start = list.childElementCount;
      clearTimeout(this.later);
      try {
        const {search: {running, done, of, problem}, found, command} = await api(`/api/${store}/duplicates`, {start, count: COUNT, differing: only.checked || null}, signal);
        search.hidden = found !== null;
        if (!found) {
          head.textContent = running ? "Searching for duplicates…" : escaped(problem) || "These images have not been searched for duplicates.";
          [run.value, run.textContent] = running ? ["stop", "Cancel"] : ["start", "Search for duplicates"];
          Object.assign(meter, {hidden: !running, max: of, value: done});
          number.textContent = running ? `${counted(done)} of ${counted(of)} images` : "";
          terminal.replaceChildren(...running ? [] : [make("p", {class: "muted"}, "Or in a terminal:"), code(command)]);
          if (running) this.later = setTimeout(read, ASK_MS);
          return;
        }
        if (list.childElementCount === start) list.append(...found.groups.map((group) => this.group(store, group)));
        drop.hidden = all.hidden = !list.childElementCount;
        if (!stores[store].columns["duplicates.extra"]) Object.assign(stores, await api("/api/stores", {}, signal));
        more.hidden = list.childElementCount >= (only.checked ? found.differing : found.total);
        choice.hidden = !found.differing;
        head.textContent = found.total ? `${amount(found.duplicates, "duplicate")} of ${amount(found.total, "image")}. Duplicates have the same bytes, or fingerprints that differ in at most ` +
          `${found.distance} of 128 bits. The first image of a group is compared with the others. Groups with different labels: ${counted(found.differing)}.` : "No two images are equal or nearly equal.";
      } catch (error) {
        if (signal.aborted) return;
        head.textContent = error.message;
        head.className = "error";
        more.hidden = true;
      }
    };
    more.onclick = read;
    only.onchange = () => { list.replaceChildren(); read(); };
    await read();
  }

  group(s, {index, name, count, others, ...group}) {
    const rest = others.map((row) => make("div", {}, pictured(s, row.index,
      `${counted(row.index)} · ${row.difference === "same" ? "same bytes" : amount(row.bits, "bit")}`,
      row.class, row.class !== group.class), make("label", {}, make("input", {type: "checkbox", checked: row.difference === "same", value: row.index}), " drop")));
    const first = pictured(s, index, `${counted(index)} · first`, group.class);
    const left = count - others.length;
    return make("section", {class: "group"}, make("h2", {}, `${escaped(name ?? "without a name")} and ${counted(count)} more`),
      make("div", {class: "pairs"}, first, ...rest), left ? make("p", {class: "muted"}, `and ${counted(left)} more`) : null);
  }
}
customElements.define("db-duplicates", Duplicates);
