// @ts-check
/** What the training sees: the batch of a step, each image beside its original with the crop; one record in twelve epochs. */
import {address, api, className, counted, escaped, go, keys, link, make, picture, title} from "./app.js";

/** @typedef {import("./app.js").State} State */
/** Name, text, usual value, and whether it matters for one record. @type {[string, string, number | string, boolean][]} */
const OPTIONS = [["seed", "Seed", 0, true], ["epoch", "Epoch", 0, false], ["batch_size", "Batch size", 32, true],
  ["world_size", "World size", 1, true], ["rank", "Rank", 0, false], ["step", "Step", 0, false], ["size", "Size", 224, true]];
const SIDE = 156; // pixels of a picture: two fit on a phone
const PASTE = "As print() or json.dumps() writes it. It decides the order, the seed and the epoch, and steps are counted from it.";

class Training extends HTMLElement {
  /** @param {State} now */
  async show(now) {
    title("What the training sees");
    this.stop();
    const {signal} = (this.stopped = new AbortController());
    this.data = null;
    const of = now.record === undefined ? null : Number(now.record);
    const out = make("div", {class: "out"}, make("p", {class: "muted"}, "…"));
    this.replaceChildren(make("h1", {}, "What the training sees"), ...this.form(now), out);
    try {
      const asked = Object.fromEntries([...OPTIONS.map(([name]) => name), "drop_last", "state"].map((name) => [name, now[name]]));
      const data = await api(`/api/${now.store}/${of === null ? "training" : `epochs/${of}`}`, asked, signal);
      this.data = data;
      const samples = of === null ? data.samples.map((/** @type {any} */ each) => ({...each, epoch: data.epoch})) : data.epochs;
      const notes = data.transform ? [`The transform is ${data.transform}.`] : [];
      if (!data.repeatable)
        notes.push("If it draws from global random generators, each look differs, and so do the training's images. Those of a Decoder do not.");
      out.replaceChildren(...(of === null ? this.head(now, data) : this.recordHead(of, data)),
        ...notes.map((note) => make("p", {class: "muted"}, escaped(note))),
        make("ul", {class: "pairs"}, ...samples.map((/** @type {any} */ sample) => this.pair(now, sample, data))));
    } catch (error) {
      if (signal.aborted) return;
      out.replaceChildren(make("p", {class: "error", role: "alert"}, escaped(/** @type {Error} */ (error).message)));
    }
  }

  stop() {
    this.stopped?.abort();
    this.seen?.disconnect();
    for (const each of this.urls ?? []) URL.revokeObjectURL(each);
    /** @type {string[]} */
    this.urls = [];
    /** @type {Map<Element, () => void>} */
    this.loads = new Map();
    this.seen = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach(({target}) => {
      this.loads?.get(target)?.();
      this.seen?.unobserve(target);
    }), {rootMargin: "300px"});
  }

  /** @param {State} now */
  form(now) {
    const fields = OPTIONS.filter(([, , , always]) => always || now.record === undefined).map(([name, text, usual]) =>
      make("label", {}, text, make("input", {name, value: now[name] ?? usual, disabled: Boolean(now.state) && (name === "seed" || name === "epoch"),
        onchange: (/** @type {any} */ event) => go({[name]: event.target.value.trim()})})));
    const last = make("label", {}, make("input", {type: "checkbox", name: "drop_last", checked: now.drop_last !== "0",
      onchange: (/** @type {any} */ event) => go({drop_last: event.target.checked ? null : 0})}), "Leave out the last incomplete batch");
    const pasted = make("textarea", {rows: 3, value: now.state ?? "", spellcheck: false, ariaLabel: "A state_dict() of the loader"});
    return [make("div", {class: "options"}, ...fields, last), make("details", {open: Boolean(now.state)},
      make("summary", {}, "Paste a state_dict() to see what comes next"), make("p", {class: "muted"}, PASTE), pasted,
      make("div", {class: "row"}, make("button", {onclick: () => go({state: pasted.value.trim(), step: null})}, "Show"),
        now.state ? make("button", {onclick: () => go({state: null, step: null})}, "Without it") : null))];
  }

  /** @param {State} now
   * @param {any} data */
  head(now, data) {
    const count = data.indices.length;
    const some = data.samples.length < count ? `the first ${counted(data.samples.length)} of ` : "";
    return [make("div", {class: "row"}, make("button", {onclick: () => this.move(-1), ariaLabel: "Step before"}, "←"),
      make("button", {onclick: () => this.move(1), ariaLabel: "Next step"}, "→"), make("p", {class: "where", role: "status"},
        `Epoch ${data.epoch}, step ${counted(data.step)} (of ${counted(data.steps)}, from 0${now.state ? ", after the state" : ""}): ${some}${counted(count)} images of a ${data.order.sampler}`))];
  }

  /** @param {number} of
   * @param {any} data */
  recordHead(of, data) {
    const {epoch, name} = data.epochs[0];
    return [make("p", {class: "where"}, `Record ${of}, ${escaped(name ?? "without a name")}, in epochs ${epoch} to ${epoch + 11} of a ${data.order.sampler}. Steps are counted from the start of each epoch.`),
      make("p", {class: "row"}, epoch ? link({epoch: Math.max(0, epoch - 12)}, "← Epochs before") : null, link({epoch: epoch + 12}, "Epochs after →"), link({record: null}, "Batches"))];
  }

  /** Return an original with its crop, and beside it the image as the network gets it.
   * @param {State} now
   * @param {any} sample
   * @param {any} data */
  pair(now, sample, data) {
    let [width, height] = sample.size?.every(Boolean) ? sample.size : [1, 1];
    if (sample.turned > 4) [width, height] = [height, width];
    const original = make("span", {class: "original"}, make("img", {loading: "lazy", alt: `Original of ${sample.index}`, src: picture("thumb", now.store, sample.index, {px: 320})}));
    Object.assign(original.style, {width: `${SIDE * Math.min(1, width / height)}px`, height: `${SIDE * Math.min(1, height / width)}px`});
    if (sample.shares) {
      const [left, top, across, down] = sample.shares.map((/** @type {number} */ share) => `${100 * share}%`);
      const crop = make("i", {class: "crop"});
      Object.assign(crop.style, {left, top, width: across, height: down});
      original.append(crop);
    }
    const seen = make("span", {class: "seen"});
    const values = make("span", {class: "muted"});
    const failed = (/** @type {string} */ text) => seen.append(make("span", {class: "error"}, escaped(text)));
    if (sample.error) failed(sample.error);
    else {
      this.loads?.set(seen, async () => {
        const reply = await fetch(address(`/seen/${now.store}/${sample.index}`, {seed: data.seed, epoch: sample.epoch, position: sample.position, size: now.size}), {signal: this.stopped?.signal}).catch(() => null);
        if (!reply?.ok) return reply && failed((await reply.json()).error);
        const src = URL.createObjectURL(await reply.blob());
        this.urls?.push(src);
        seen.append(make("img", {src, alt: "As the network gets it"}));
        values.textContent = reply.headers.get("X-Values") ?? "";
      });
      this.seen?.observe(seen);
    }
    const where = `epoch ${sample.epoch}, rank ${sample.rank}, `;
    const facts = [`position ${counted(sample.position)}`, sample.flip && make("b", {}, "flipped"), sample.turned > 1 && "stored turned: the training does not turn it upright", values];
    if (sample.step === null) facts.unshift(`${where}in the last incomplete batch, which is left out`);
    else if (sample.rank !== undefined)
      facts.unshift(link({record: null, epoch: sample.epoch, rank: sample.rank, step: sample.step, state: sample.state}, `${where}step ${counted(sample.step)}`));
    return make("li", {"data-position": sample.position}, make("div", {class: "pair"}, link({view: "record", index: sample.index, record: null}, original), seen),
      make("div", {}, make("b", {}, sample.index), ` ${escaped(sample.name ?? "")} `, make("span", {class: "muted"}, escaped(className(now.store, sample.label ?? null)))),
      make("div", {class: "facts"}, ...facts.filter(Boolean).flatMap((fact) => [fact, make("br")])));
  }

  /** @param {number} by */
  move(by) {
    const data = this.data;
    if (!data?.samples) return;
    const step = data.step + by;
    if (step >= 0 && step < data.steps) go({step});
    else if (by > 0) go({epoch: data.epoch + 1, state: data.next_epoch, step: 0});
    else if (data.epoch > 0 && !data.next_epoch) go({epoch: data.epoch - 1, step: data.steps - 1});
  }
}
customElements.define("db-training", Training);
const element = () => /** @type {Training} */ (document.querySelector("db-training"));
keys({ArrowRight: ["The next step", () => element().move(1)], ArrowLeft: ["The step before", () => element().move(-1)]}, "training");
