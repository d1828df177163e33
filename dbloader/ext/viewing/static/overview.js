/** The overview of a store: numbers, pictures, and links to the grid. It reads all records only if the user asks for it. */
import {amount, api, className, counted, escaped, link, make, restart, shortPlace, sized, stores, title} from "./app.js";
import {searcher} from "./duplicates.js";
import {empty, icon, pictured} from "./icons.js";
import {classWord} from "./query.js";
import {code} from "./record.js";

const STRIP = 9; // pictures at the top

/** Return a word of a command, in quotes if the shell needs them. */
const shell = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\"'\"'")}'`);

/** Return two numbers as a range, such as "30 to 54", or one number if they are equal. */
const range = (from, to) => (from === to ? counted(from) : `${counted(from)} to ${counted(to)}`);

const isEqual = ([least, greatest]) => least === greatest;
const links = (...all) => make("p", {class: "links"}, ...all);

/** Return a part of a store's overview: a name, a large figure, a text, and pictures. `to` is what the whole card links to. */
export function face(sign, name, {figure, text, tone = "", to, more = [], pictures = []}) {
  const head = [icon(sign), name];
  return [make("h2", {}, ...to ? [link({view: null, at: null, sort: null, q: null, ...to}, ...head)] : head),
    figure === undefined ? "" : make("strong", {class: `figure ${tone}`}, figure),
    make("p", {class: "muted"}, text), ...more, make("div", {class: "four"}, ...pictures)];
}

class Overview extends HTMLElement {
  show({store}) {
    title("overview");
    const info = stores[store], key = `${store} ${info.marks.revision} ${Object.keys(info.columns)}`;
    if (key === this.key) return;
    this.key = key;
    const signal = restart(this), {records, width, height, labelled, label_counts: counts} = info;
    const rows = (q, sort = "", count = 4) => api(`/api/${store}/rows`, {q, sort, start: 0, count}, signal).then((found) => found.rows);
    const captioned = ([index], text) => link({view: "record", index}, pictured(store, index), make("span", {class: "muted"}, text));
    const pictures = async (q, sort) => (await rows(q, sort)).map(([index]) => pictured(store, index));
    const count = async (q) => (await api(`/api/${store}/select`, {q}, signal)).count;
    const skeletons = (length) => Array.from({length}, () => make("i", {class: "skeleton"}));
    const heading = make("h1", {}, shortPlace(store));
    if (!records) return this.replaceChildren(heading, empty("nothing", "This store has no records"));
    const card = (sign, name, facts) => {
      const all = make("section", {class: "card"}, ...face(sign, name, {figure: " ", text: "", pictures: skeletons(4)}));
      facts().then((found) => all.replaceChildren(...face(sign, name, found)), (error) => {
        this.key = ""; // the next show() asks again
        if (!signal.aborted) all.replaceChildren(...face(sign, name, {text: make("span", {class: "error"}, escaped(error.message))}));
      });
      return all;
    };
    const strip = link({view: null, at: null, sort: null, q: null}, ...skeletons(STRIP));
    Object.assign(strip, {className: "strip-of-pictures", ariaLabel: amount(records, "image")});
    const chosen = [...new Set(Array.from({length: STRIP}, (_, n) => Math.floor(((n + 0.5) * records) / STRIP)))];
    rows(`index:${chosen}`, "", STRIP).then((found) => strip.replaceChildren(...found.map(([index, , , wide, high]) => {
      const image = pictured(store, index, 320);
      image.style.flexGrow = Math.min(2.5, Math.max(0.6, wide / high || 1));
      return image;
    })), () => {});
    const classes = Object.entries(counts ?? {}).map(([label, number]) => [Number(label), number]).sort((one, other) => one[1] - other[1]);
    const few = classes[0]?.[1], many = classes.at(-1)?.[1], bare = info.classes.length - classes.length;
    const kinds = info.classes.length ? `${counted(classes.length)} ${classes.length === 1 ? "class" : "classes"}` :
      amount(classes.length, "label");
    const facts = [amount(records, "image"), classes.length && kinds, sized(info.image_bytes),
      Object.keys(info.formats).slice(0, 3).map(escaped).join(", ")].filter(Boolean);
    this.replaceChildren(make("header", {}, heading, make("p", {class: "muted"}, facts.join(" · "))), strip, make("div", {class: "cards"},
      ...stores.length > 1 ? [this.sides(store)] : [],
      card("classes", info.classes.length ? "Classes" : "Labels", async () => classes.length ? {
        figure: counted(classes.length), to: {sort: "label"},
        text: [`${range(few, many)} images each`, bare > 0 && `${counted(bare)} without an image`,
          labelled < records && `${amount(records - labelled, "image")} without a label`].filter(Boolean).join(", "),
        pictures: await Promise.all(classes.slice(0, 4).map(async ([label, number]) => {
          const q = classWord(store, label), name = escaped(className(store, label));
          const agreed = info.columns["labels.differ"] ? await rows(`${q} labels.differ=false`, "", 1) : []; // better examples
          const [[index]] = agreed.length ? agreed : await rows(q, "", 1);
          return link({view: null, at: null, sort: null, q}, pictured(store, index), make("span", {title: name}, name),
            make("span", {class: "muted"}, counted(number)));
        })),
      } : {figure: counts ? "0" : undefined, text: counts ? "The records have no labels." : "More than 65,536 different labels."}),
      card("review", "Labels in doubt", async () => {
        const command = `dbloader view ${shell(info.place)} --with predictions.csv`;
        if (!info.columns["labels.differ"])
          return {text: "Not known yet. Start the viewer with what a model predicts:", more: [code(command)]};
        const open = ["labels.differ", info.columns["mark.label"] && 'not mark.label!=""',
          info.columns["mark.drop"] && "not mark.drop"].filter(Boolean).join(" ");
        const to = {q: open, sort: info.columns.loss ? "-loss" : null};
        const [number, all, agreed] = await Promise.all([open, "labels.differ", "labels.differ=false"].map(count));
        const decided = all > number ? `; ${counted(all - number)} more are decided` : "";
        return {figure: counted(number), tone: number ? "bad" : "good", to, pictures: await pictures(to.q, to.sort ?? ""),
          text: `of ${amount(all + agreed, "prediction")} differ from the label${decided}`,
          more: [links(link({view: "review", at: null, ...to}, "Review"), link({view: "compare", q: null}, "Compare"))]};
      }),
      this.duplicates(store, signal, pictures),
      card("report", "Damaged", async () => {
        const damaged = await count("damaged"), {repaired = 0, rejected = 0} = info.outcome;
        const stored = damaged ? "stored as they were" : rejected ? "none stored" :
          "when the store was made. To check the stored bytes now:";
        const text = rejected ? `${stored}; ${amount(rejected, damaged ? "more file" : "file")} rejected` : stored;
        return {figure: counted(damaged), tone: damaged ? "bad" : "", to: damaged ? {q: "damaged"} : undefined,
          pictures: damaged ? await pictures("damaged") : [], text,
          more: [damaged || rejected || repaired ? links(link({view: "report"}, "Report")) : code(`dbloader verify ${shell(info.place)}`)]};
      }),
      ...info.outcome.repaired ? [card("report", "Repaired", async () => {
        const repaired = await count("repaired");
        return {figure: counted(repaired), to: {q: "repaired"}, text: "when the store was made", pictures: await pictures("repaired")};
      })] : [],
      card("size", "Sizes", async () => (width[1] ? {
        figure: `${range(...width)} px`, to: {sort: "odd"},
        pictures: (await rows("", "odd")).map((row) => captioned(row, `${row[3]} × ${row[4]}`)),
        text: `wide and ${range(...height)} px high. ${isEqual(width) && isEqual(height) ? "All are equal." : "Rarest sizes first:"}`,
      } : {text: "The images have no width and height."})),
      card("files", "Files", async () => {
        const largest = await rows("", "-bytes");
        const formats = Object.entries(info.formats).map(([format, number]) => `${escaped(format)} ${counted(number)}`);
        const text = [...formats, `largest ${sized(largest[0][5] ?? 0)}`].join(", ");
        return {figure: sized(info.image_bytes), to: {sort: "-bytes"}, text,
          pictures: largest.map((row) => captioned(row, sized(row[5] ?? 0)))};
      })));
  }

  duplicates(store, signal, pictures) {
    const head = make("p", {class: "muted", role: "status"}), all = make("section", {class: "card"});
    const search = searcher(store, "duplicates", head, signal, async ({duplicates, total, differing}) => {
      const groups = `in ${amount(total, "group")}${differing ? `, ${counted(differing)} with different labels` : ""}`;
      const found = total ?
        {to: {q: "duplicates.extra"}, pictures: await pictures("duplicates.extra"), text: groups, tone: "warn",
          more: [links(link({view: "duplicates"}, "Groups"))]} :
        {text: "No two images are equal or nearly equal.", tone: "good"};
      all.replaceChildren(...face("duplicates", "Duplicates", {figure: counted(duplicates), ...found}));
    });
    all.append(make("h2", {}, icon("duplicates"), "Duplicates"), head, search);
    return all;
  }

  /** Show how the records are split between the stores. */
  sides(store) {
    const all = stores.reduce((sum, each) => sum + each.records, 0); // not 0: this store has records
    const parts = stores.map(({records}, n) => {
      const text = ` ${counted(records)} · ${Math.round((100 * records) / all)} %`;
      const part = make("span", {class: n === store ? "own" : ""}, make("b", {}, shortPlace(n)), text);
      part.style.flexGrow = records / all;
      return part;
    });
    return make("section", {class: "card wide"},
      make("h2", {}, link({view: "sides"}, icon("sides"), "Side by side")), make("div", {class: "split"}, ...parts));
  }
}
customElements.define("db-overview", Overview);
