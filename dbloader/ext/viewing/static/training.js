/** The training view: the batch of a step, or one record in twelve epochs. Each image is beside its original with the crop. */
import {address, api, ask, className, counted, errorOf, escaped, go, link, load, make, overlays, picture, title} from "./app.js";
import {keys} from "./keys.js";

/** Options: name, label, default, and whether the option applies to the view of one record. */
const OPTIONS = [["seed", "Seed", 0, true], ["epoch", "Epoch", 0, false], ["batch_size", "Batch size", 32, true],
  ["world_size", "World size", 1, true], ["rank", "Rank", 0, false], ["step", "Step", 0, false], ["size", "Size", 224, true]];
const SIDE = 156; // px of a picture: two fit side by side on a phone
const PASTE = "Paste what print(loader.state_dict()) prints, or the state as JSON. The state sets the order, the seed and the epoch. Step 0 is the first batch after the state.";

class Training extends HTMLElement {
  connectedCallback() {
    const fields = [...OPTIONS.map(([name, text]) => make("label", {}, text, make("input", {name}))),
      make("label", {}, make("input", {type: "checkbox", name: "drop_last"}), "Drop the last incomplete batch")];
    const text = make("textarea", {name: "state", rows: 3, spellcheck: false, ariaLabel: "A state_dict() of the loader"});
    const step = (by, name) => make("button", {ariaLabel: name, onclick: () => this.move(by)}, by < 0 ? "←" : "→");
    this.where = make("p", {class: "where", role: "status"});
    this.out = make("div");
    this.replaceChildren(make("h1", {}, "What training sees"), make("div", {class: "options", onchange: ({target}) =>
      go({[target.name]: target.type === "checkbox" ? (target.checked ? null : 0) : target.value.trim()})}, ...fields),
      make("details", {}, make("summary", {}, "Paste a state_dict() to see what comes next"), make("p", {class: "muted"}, PASTE), text,
        make("div", {class: "row"}, make("button", {onclick: () => go({state: text.value.trim(), step: null})}, "Show"),
          make("button", {onclick: () => go({state: null, step: null})}, "Remove the state"))),
      make("div", {class: "row"}, make("span", {class: "by"}, step(-1, "Previous step"), step(1, "Next step")), this.where, this.overlays = make("span", {class: "overlays", ariaLabel: "Over the originals", role: "group"})), this.out);
    this.urls = [];
  }

  async show(now) {
    title("What training sees");
    this.stop();
    const {signal} = (this.stopped = new AbortController());
    this.data = null;
    const of = now.record === undefined ? null : Number(now.record);
    this.form(now);
    this.overlays.replaceChildren(...overlays(now.store));
    if (!this.out.childElementCount) this.where.textContent = "Computing the batch. The first time, the server loads torch, which takes some seconds.";
    try {
      const asked = Object.fromEntries([...OPTIONS.map(([name]) => name), "drop_last", "state"].map((name) => [name, now[name]]));
      const data = await api(`/api/${now.store}/${of === null ? "training" : `epochs/${of}`}`, asked, signal);
      this.data = data;
      const samples = of === null ? data.samples.map((each) => ({...each, epoch: data.epoch})) : data.epochs;
      const {epoch, name} = samples[0];
      const order = Object.entries(data.order).flatMap(([key, value]) => key === "sampler" ? [value] : key === "length" ? [] : [`${key}=${value}`]).join(", ");
      const all = of === null ? data.indices.length : 0;
      this.where.textContent = of !== null ? `Record ${of}, ${escaped(name ?? "without a name")}, in epochs ${epoch} to ${epoch + 11}. Steps are counted from the start of each epoch. Order: ${order}`
        : `Epoch ${epoch}, step ${counted(data.step)} (0 to ${counted(data.steps - 1)}${now.state ? " after the state" : ""}): ${samples.length < all ? `the first ${counted(samples.length)} of ` : ""}${counted(all)} images. Order: ${order}`;
      const notes = data.transform ? [`The transform is ${data.transform}.`] : [];
      if (!data.repeatable) notes.push("If the transform uses global random generators, its result differs each time, here and in training. A Decoder always gives the same result.");
      this.out.replaceChildren(...notes.map((note) => make("p", {class: "muted"}, escaped(note))),
        of === null ? "" : make("p", {class: "row"}, epoch ? link({epoch: Math.max(0, epoch - 12)}, "← Earlier epochs") : null,
          link({epoch: epoch + 12}, "Later epochs →"), link({record: null, epoch: null}, "Batches")),
        make("ul", {class: "samples"}, ...samples.map((sample) => this.pair(now, sample, data))));
      for (const name of now.state ? ["seed", "epoch"] : []) this.field(name, data[name]);
      this.field("size").parentElement.hidden = Boolean(data.transform);
    } catch (error) {
      if (signal.aborted) return;
      this.where.textContent = "";
      this.out.replaceChildren(make("p", {class: "error", role: "alert"}, escaped(error.message)));
    }
  }

  stop() {
    this.stopped?.abort();
    this.near?.disconnect();
    for (const each of this.urls) URL.revokeObjectURL(each);
    this.urls = [];
    this.loads = new Map();
    this.near = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach(({target}) => {
      this.near.unobserve(target);
      this.loads.get(target)();
    }), {rootMargin: "300px"});
  }

  /** Fill the form from the state. */
  form(now) {
    for (const [name, , usual, always] of OPTIONS) {
      const input = this.field(name, now[name] ?? usual);
      input.disabled = Boolean(now.state) && (name === "seed" || name === "epoch");
      input.parentElement.hidden = !always && now.record !== undefined;
    }
    this.field("drop_last").checked = now.drop_last !== "0";
    this.field("state", now.state ?? "");
    if (now.state) this.querySelector("details").setAttribute("open", "");
    this.querySelector(".by").toggleAttribute("hidden", now.record !== undefined);
  }

  /** Return a field of the form; set its value if one is given. */
  field(name, value) {
    const found = this.querySelector(`[name="${name}"]`);
    if (value !== undefined) found.value = String(value);
    return found;
  }

  /** Return an item: the original with its crop, the image that the network gets, and facts. */
  pair(now, sample, data) {
    const store = sample.store ?? now.store; // a sample of a mixture names its store
    let [width, height] = sample.size?.every(Boolean) ? sample.size : [1, 1];
    if (sample.turned > 4) [width, height] = [height, width];
    const stored = make("img", {loading: "lazy", alt: `Original of ${sample.index}`});
    load(stored, picture("thumb", store, sample.index, {px: 320, over: now.over}));
    const original = make("span", {class: "original"}, stored);
    Object.assign(original.style, {width: `${SIDE * Math.min(1, width / height)}px`, height: `${SIDE * Math.min(1, height / width)}px`});
    if (sample.shares) {
      const [left, top, across, down] = sample.shares.map((share) => `${100 * share}%`);
      const crop = make("i", {class: "crop"});
      Object.assign(crop.style, {left, top, width: across, height: down});
      original.append(crop);
    }
    const seen = make("span", {class: "seen"});
    const values = make("span", {class: "muted"});
    const failed = (text) => seen.append(make("span", {class: "error"}, escaped(text)));
    if (sample.error) failed(sample.error);
    else {
      const signal = this.stopped.signal;
      this.loads.set(seen, async () => {
        try {
          const reply = await ask(address(`/seen/${store}/${sample.seen ?? sample.index}`, {seed: data.seed, epoch: sample.epoch, position: sample.position, size: now.size}), signal);
          if (!reply.ok) return failed(await errorOf(reply));
          const src = URL.createObjectURL(await reply.blob());
          this.urls.push(src);
          seen.append(make("img", {src, alt: "Input of the neural network"}));
          values.textContent = reply.headers.get("X-Values") ?? "";
        } catch (error) {
          if (!signal.aborted) failed(error.message);
        }
      });
      this.near.observe(seen);
    }
    const facts = [sample.source && escaped(sample.source), `position ${counted(sample.position)}`, sample.flip && make("b", {}, "flipped"),
      sample.turned > 1 && "stored rotated; training does not rotate it upright"];
    if (sample.rank !== undefined) {
      const at = `epoch ${sample.epoch}, rank ${sample.rank}, `;
      const to = {record: null, epoch: sample.epoch, rank: sample.rank, step: sample.step, state: sample.state};
      facts.unshift(sample.step === null ? `${at}in the last incomplete batch, which is dropped` : link(to, `${at}step ${counted(sample.step)}`));
    }
    return make("li", {"data-position": sample.position}, make("div", {class: "both"}, Object.assign(link({view: "record", store, index: sample.index, record: null}, original), {ariaLabel: `Record ${sample.index}`}), seen),
      make("div", {}, make("b", {}, sample.index), ` ${escaped(sample.name ?? "")} `, make("span", {class: "muted"}, escaped(className(store, sample.label ?? null)))),
      make("div", {class: "at"}, ...facts.filter(Boolean).flatMap((fact, at) => at ? [" · ", fact] : [fact])), values);
  }

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
const element = () => document.querySelector("db-training");
keys({ArrowRight: ["Next step", () => element().move(1)], ArrowLeft: ["Previous step", () => element().move(-1)]}, "training");
