/** Groups of duplicates that `dbloader duplicates` found. */
import {api, counted, escaped, link, load, make, picture, title} from "./app.js";

const COUNT = 20; // groups of a request

/** Return a link to a record: its picture, a text and its class, which is red if it differs. */
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
    const [head, list, more] = [make("p", {role: "status"}, "Searching…"), make("div", {class: "groups"}), make("button", {hidden: true}, "Show more")];
    const only = make("input", {type: "checkbox"}), choice = make("label", {hidden: true}, only, " only groups whose labels differ");
    this.replaceChildren(make("h1", {}, "Duplicates"), head, choice, list, more);
    const load = async () => {
      try {
        const found = await api(`/api/${store}/duplicates`, {start: list.childElementCount, count: COUNT, differing: only.checked || null}, signal);
        list.append(...found.groups.map((group) => this.group(store, group)));
        more.hidden = list.childElementCount >= (only.checked ? found.differing : found.total);
        choice.hidden = !found.differing;
        head.textContent = found.total ? `${counted(found.duplicates)} images are duplicates of ${counted(found.total)} others: they have the same bytes, or at most ` +
          `${found.distance} of 128 bits of their fingerprints differ. Each group begins with the image to which the others are compared. ${counted(found.differing)} groups have labels that differ.` : "No two images are equal or nearly equal.";
      } catch (error) {
        if (signal.aborted) return;
        head.textContent = error.message;
        head.className = "error";
        more.hidden = true;
      }
    };
    more.onclick = load;
    only.onchange = () => { list.replaceChildren(); load(); };
    await load();
  }

  group(s, {index, name, count, others, ...group}) {
    const rest = others.map((row) =>
      pictured(s, row.index, `${counted(row.index)} · ${row.difference === "same" ? "same bytes" : row.bits === 1 ? "1 bit" : `${row.bits} bits`}`,
        row.class, row.class !== group.class));
    const first = pictured(s, index, `${counted(index)} · first`, group.class);
    const left = count - others.length;
    return make("section", {class: "group"}, make("h2", {}, `${escaped(name ?? "without a name")} and ${counted(count)} more`),
      make("div", {class: "pairs"}, first, ...rest), left ? make("p", {class: "muted"}, `and ${counted(left)} more`) : null);
  }
}
customElements.define("db-duplicates", Duplicates);
