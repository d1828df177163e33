/** The training view: the batch of a step. Each image is beside its original with the crop. */
import {address, api, ask, className, counted, errorOf, escaped, go, link, load, make, over, overlays, picture,
  restart, title} from "./app.js";
import {keys} from "./keys.js";

/** Options: name, label and default. The last two are for several GPUs. */
const OPTIONS = [["seed", "Seed", 0], ["epoch", "Epoch", 0], ["step", "Step", 0], ["batch_size", "Batch size", 32], ["size", "Size", 224],
  ["world_size", "World size", 1], ["rank", "Rank", 0]];
const PASTE = "To see what comes next, paste what print(loader.state_dict()) prints, or the state as JSON. The state sets the order, " +
  "the seed and the epoch. Step 0 is the first batch after the state.";
const FIRST = "Computing the batch. The first time, the server loads torch, which takes some seconds.";
const DIFFERS = "If the transform uses global random generators, its result differs each time, here and in training. A Decoder always " +
  "gives the same result.";

class Training extends HTMLElement {
  connectedCallback() {
    const fields = OPTIONS.map(([name, text]) => make("label", {}, text, make("input", {name})));
    const change = ({target}) => target !== text &&
      go({[target.name]: target.type === "checkbox" ? (target.checked ? null : 0) : target.value.trim()});
    const text = make("textarea", {name: "state", rows: 3, spellcheck: false, ariaLabel: "A state_dict() of the loader"});
    const step = (by, name) => make("button", {ariaLabel: name, onclick: () => this.move(by)}, by < 0 ? "←" : "→");
    this.where = make("p", {class: "where", role: "status"});
    this.out = make("div");
    this.replaceChildren(make("h1", {}, "What training sees"), make("div", {class: "options", onchange: change}, ...fields.splice(0, 5)),
      make("details", {onchange: change}, make("summary", {}, "Several GPUs, the last batch, a saved state"),
        make("div", {class: "options"}, ...fields,
          make("label", {}, make("input", {type: "checkbox", name: "drop_last"}), "Drop the last incomplete batch")),
          make("p", {class: "muted"}, PASTE), text,
        make("div", {class: "row"}, make("button", {onclick: () => go({state: text.value.trim(), step: null})}, "Show"),
          make("button", {onclick: () => go({state: null, step: null})}, "Remove the state"))),
      make("div", {class: "row"}, make("span", {class: "by"}, step(-1, "Previous step"), step(1, "Next step")), this.where,
        this.overlays = make("span", {class: "overlays", ariaLabel: "Over the originals", role: "group"})), this.out);
    this.urls = [];
    keys({ArrowRight: ["Next step", () => this.move(1)], ArrowLeft: ["Previous step", () => this.move(-1)]}, "training");
  }

  async show(now) {
    title("What training sees");
    this.forget();
    const signal = restart(this);
    this.data = null;
    this.form(now);
    this.overlays.replaceChildren(...overlays(now.store));
    if (!this.out.childElementCount) this.where.textContent = FIRST;
    try {
      const asked = Object.fromEntries([...OPTIONS.map(([name]) => name), "drop_last", "state"].map((name) => [name, now[name]]));
      const data = await api(`/api/${now.store}/training`, asked, signal);
      this.data = data;
      const {samples, epoch, indices} = data;
      const {sampler, length, ...settings} = data.order;
      const order = [sampler, ...Object.entries(settings).map(([key, value]) => `${key}=${value}`)].join(", ");
      const shown = samples.length < indices.length ? `the first ${counted(samples.length)} of ` : "";
      this.where.textContent = `Epoch ${epoch}, step ${counted(data.step)} (0 to ${counted(data.steps - 1)}` +
        `${now.state ? " after the state" : ""}): ${shown}${counted(indices.length)} images. Order: ${order}`;
      const notes = data.transform ? [`The transform is ${data.transform}.`] : [];
      if (!data.repeatable) notes.push(DIFFERS);
      this.out.replaceChildren(...notes.map((note) => make("p", {class: "muted"}, escaped(note))),
        make("ul", {class: "samples"}, ...samples.map((sample) => this.pair(now, sample, data))));
      for (const name of now.state ? ["seed", "epoch"] : []) this.field(name, data[name]);
      this.field("size").parentElement.hidden = Boolean(data.transform);
    } catch (error) {
      if (signal.aborted) return;
      this.where.textContent = "";
      this.out.replaceChildren(make("p", {class: "error", role: "alert"}, escaped(error.message)));
    }
  }

  forget() {
    this.near?.disconnect();
    for (const each of this.urls) URL.revokeObjectURL(each);
    this.urls = [];
    this.loads = new Map();
    this.near = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach(({target}) => {
      this.near.unobserve(target);
      this.loads.get(target)();
    }), {rootMargin: "300px"});
  }

  form(now) {
    for (const [name, , usual] of OPTIONS)
      this.field(name, now[name] ?? usual).disabled = Boolean(now.state) && (name === "seed" || name === "epoch");
    this.field("drop_last").checked = now.drop_last !== "0";
    this.field("state", now.state ?? "");
    if (now.state || now.world_size || now.rank || now.drop_last) this.querySelector("details").open = true;
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
    load(stored, picture("thumb", store, sample.index, {px: 320, over: over(store)}));
    const original = make("span", {class: "original"}, stored);
    Object.assign(original.style, {width: `${100 * Math.min(1, width / height)}%`, height: `${100 * Math.min(1, height / width)}%`});
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
      const {signal} = this.stop;
      this.loads.set(seen, async () => {
        try {
          const {seed, epoch} = data, asked = {seed, epoch, position: sample.position, size: now.size};
          const reply = await ask(address(`/seen/${store}/${sample.seen ?? sample.index}`, asked), signal);
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
    return make("li", {"data-position": sample.position},
      make("div", {class: "both"},
        Object.assign(link({view: "record", store, index: sample.index}, original), {ariaLabel: `Record ${sample.index}`}), seen),
      make("div", {}, make("b", {}, sample.index), ` ${escaped(sample.name ?? "")} `,
        make("span", {class: "muted"}, escaped(className(store, sample.label ?? null)))),
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
