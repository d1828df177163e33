/** Stores side by side, such as train and val: what both contain, their classes, sizes and formats. */
import {amount, api, className, counted, escaped, go, link, make, notice, restart, shortPlace, sized, stores, title} from "./app.js";
import {exact} from "./bars.js";
import {nearness, recordLink, searcher} from "./duplicates.js";
import {empty, pictured} from "./icons.js";
import {locked, toggleDrop} from "./marks.js";
import {face} from "./overview.js";
import {classWord} from "./query.js";

const [FIRST, SHOWN] = [12, 12]; // classes, and pairs of shared images, that are shown at first
const NAMED = 8; // class names in a sentence
const WIDE = 20; // an axis is logarithmic if the values differ by more than this factor, as in summary.py
const LENGTH = 1000; // units of an axis
const percent = (share) => `${(100 * share).toFixed(share && share < 0.1 ? 1 : 0)} %`;

class Sides extends HTMLElement {
  async show({store}) {
    title("side by side");
    const signal = restart(this);
    const alone = empty("sides", "There is one store", "Start the viewer with two: dbloader view train.lmdb val.lmdb");
    if (stores.length < 2) return this.replaceChildren(make("h1", {}, "Side by side"), alone);
    if (!this.shared) {
      this.shared = make("section");
      this.replaceChildren(make("h1", {}, "Side by side"), make("div", {class: "cards two"}, ...stores.map((_, n) => this.store(n))),
        ...this.classLists(), this.shared, ...this.shares(), ...await this.sizes());
    }
    const head = make("p", {role: "status"}), result = make("div");
    const search = searcher(store, "leaks", head, signal, async ({leaks}) => {
      const parts = stores.map((_, n) => `${amount(leaks[n], "image")} of ${shortPlace(n)}`);
      const which = leaks.length > 2 ? "are also in another store" : "are in both stores";
      head.textContent = !leaks.some(Boolean) ? "No image is in more than one store." :
        `${parts.join(" and ")} ${which}: a model that is tested on images of its training looks better than it is.`;
      if (!leaks.some(Boolean)) return;
      const isDropped = async (number, n) => {
        const {kinds} = await api(`/api/${n}/marked`, {q: "duplicates.leak"}, signal);
        return number > 0 && kinds.some(({key, count}) => key === "drop" && count === number);
      };
      const [{found: {pairs}}, ...drops] =
        await Promise.all([api(`/api/${store}/leaks`, {count: SHOWN}, signal), ...leaks.map(isDropped)]);
      const buttons = leaks.map((number, n) => number && make("button", {...locked(n),
        class: n || drops.some(Boolean) ? "" : "first", ariaPressed: String(drops[n]),
        onclick: async () => { // the changes and Undo of the page are those of its store
          if (await toggleDrop(n, "duplicates.leak", number)) go({store: n}, {replace: true});
        }}, drops[n] ? `Dropped in ${shortPlace(n)}` : `Drop in ${shortPlace(n)}`)).filter(Boolean);
      result.replaceChildren(make("p", {class: "row links"}, ...buttons,
        link({view: null, at: null, sort: null, q: "duplicates.leak"}, `Show those of ${shortPlace(store)}`)),
      make("div", {class: "shared"},
        ...pairs.map((pair) => make("div", {class: "pairs"}, recordLink(store, pair.index, [shortPlace(store)], pair.class),
        recordLink(pair.store, pair.of, [shortPlace(pair.store), nearness(pair)], pair.of_class, pair.of_class !== pair.class)))));
    });
    this.shared.replaceChildren(make("h2", {}, "Images in more than one store"), head, search, result);
  }

  store(n) {
    const {records, classes, formats, image_bytes: bytes} = stores[n], all = stores.reduce((sum, each) => sum + each.records, 0) || 1;
    const indices = [...new Set([0.1, 0.35, 0.6, 0.85].map((at) => Math.floor(at * records)))].filter((index) => index < records);
    const text = [`${percent(records / all)} of all images`, classes.length ? `${counted(classes.length)} classes` : "", sized(bytes),
      ...Object.keys(formats).map(escaped)].filter(Boolean).join(" · ");
    return make("section", {class: `card side side-${n % 4}`}, ...face("grid", shortPlace(n),
      {figure: counted(records), to: {store: n}, text, pictures: indices.map((index) => pictured(n, index))}));
  }

  /** Say how the class lists differ. */
  classLists() {
    const lists = stores.map(({classes}) => new Set(classes)), said = [];
    const some = (names) =>
      names.slice(0, NAMED).map(escaped).join(", ") + (names.length > NAMED ? ` and ${counted(names.length - NAMED)} more` : "");
    for (const [n, {classes}] of stores.entries()) {
      const only = classes.filter((name) => !lists.every((list) => list.has(name)));
      if (only.length) said.push(`Only ${shortPlace(n)} has ${some(only)}.`);
    }
    const at = stores[0].classes.findIndex((name, label) =>
      stores.some(({classes}) => classes[label] !== name && classes[label] !== undefined));
    const meanings = stores.map(({classes}, n) => `${escaped(classes[at] ?? "no class")} in ${shortPlace(n)}`);
    if (at >= 0) said.push(`The same label means different classes: ${at} is ${meanings.join(", ")}.`);
    if (!said.length) return [];
    return [make("p", {class: "warning", role: "status"}, make("strong", {}, "The class lists differ. "), said.join(" "))];
  }

  /** Return the shares of classes and formats, the greatest difference first. */
  shares() {
    const count = (entriesOf) => {
      const found = new Map();
      stores.forEach((each, n) => entriesOf(each, n).forEach(([name, number, q]) => {
        if (!found.has(name)) found.set(name, stores.map(() => [0, null]));
        found.get(name)[n] = [number / (each.records || 1), q];
      }));
      const drift = ([, values]) => Math.max(...values.map(([share]) => share)) - Math.min(...values.map(([share]) => share));
      return [...found].sort((one, other) => drift(other) - drift(one));
    };
    const list = (heading, rows) => {
      if (!rows.length) return [];
      const most = Math.max(...rows.flatMap(([, values]) => values.map(([share]) => share))), all = make("div", {class: "shares"});
      const line = (name, [share, q], n) => {
        const parts = [make("span", {class: `bar side-${n % 4}`}), percent(share)];
        parts[0].style.width = `calc(${share / most} * (100% - 64px))`;
        if (!q) return make("span", {class: "line"}, ...parts);
        return Object.assign(link({store: n, view: null, q}, ...parts), {ariaLabel: `${name} in ${shortPlace(n)}: ${percent(share)}`});
      };
      const draw = (number) => all.replaceChildren(...rows.slice(0, number).map(([name, values]) =>
        make("div", {}, make("span", {class: "name", title: escaped(name)}, escaped(name)),
          make("div", {}, ...values.map((value, n) => line(name, value, n))))));
      draw(FIRST);
      const legend = make("p", {class: "legend"},
        ...stores.map((_, n) => make("span", {class: `line side-${n % 4}`}, make("i"), shortPlace(n))));
      const more = make("button", {hidden: rows.length <= FIRST, onclick: () => { draw(rows.length); more.hidden = true; }},
        `Show all ${counted(rows.length)}`);
      return [make("section", {}, make("h2", {}, heading), legend, all, more)];
    };
    return [...list("Classes, the greatest difference first", count(({label_counts: counts}, n) =>
      Object.entries(counts ?? {}).map(([label, number]) => [className(n, Number(label)), number, classWord(n, Number(label))]))),
      ...list("Formats", count(({formats}) => Object.entries(formats).map(([format, number]) => [format, number, null])))];
  }

  /** Draw the sizes of each store: a line from 5 % to 95 % of the images, a box from 25 % to 75 %, and the median. */
  async sizes() {
    const found = await Promise.all(stores.map((_, n) => api(`/api/${n}/quantiles`).catch((error) => (notice(error.message), {}))));
    const cards = ["width", "height", "aspect", "bytes"].map((name) => {
      const all = found.map((each) => each[name] ?? []), known = all.flat(), [least, greatest] = [Math.min(...known), Math.max(...known)];
      const form = name === "bytes" ? sized : (value) => exact(value, 3), bend = least > 0 && greatest > WIDE * least ? Math.log : Number;
      const at = (value) => (greatest > least ? (LENGTH * (bend(value) - bend(least))) / (bend(greatest) - bend(least)) : LENGTH / 2);
      return known.length ? make("section", {class: "card"}, make("h2", {}, name), ...all.map((values, n) => {
        if (!values.length) return "";
        const [, low, quarter, median, three, high] = values;
        const box = (x, y, to, height, kind) => make("svg:rect", {class: kind, x: at(x), y, width: Math.max(4, at(to) - at(x)), height});
        const picture = make("svg:svg", {viewBox: `0 0 ${LENGTH} 20`, preserveAspectRatio: "none", role: "img",
          "aria-label": `${shortPlace(n)}: median ${form(median)}, half of the images from ${form(quarter)} to ${form(three)}`},
        box(low, 9, high, 2), box(quarter, 4, three, 12, "half"), box(median, 0, median, 20, "median"));
        return make("div", {class: `spread side-${n % 4}`}, make("span", {}, shortPlace(n)), picture,
          make("span", {}, "median ", make("b", {}, form(median))));
      }), make("p", {class: "ends"}, make("span", {}, form(least)), make("span", {}, form(greatest)))) : "";
    });
    return [make("section", {}, make("h2", {}, "Sizes"),
      make("p", {class: "muted"}, "Line: 5 to 95 % of the images. Box: the middle half."), make("div", {class: "cards two"}, ...cards))];
  }
}
customElements.define("db-sides", Sides);
