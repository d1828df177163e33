/** The start of the page: load the views, and show the view in the URL. */
import {api, ask, bar, escaped, find, go, make, menu, say, shortPlace, state, stores, url} from "./app.js";
import {icon} from "./icons.js";
import {help, keys, pressed} from "./keys.js";
import {countChanges} from "./marks.js";

let view = null; // the name of the view that is shown

function show() {
  const now = state(), before = view;
  view = now.view;
  // a record in a drawer beside the grid
  const shownNow = [`db-${now.view}`, ...now.view === "grid" && now.open !== undefined ? ["db-record"] : []];
  for (const element of find("#main").children) element.hidden = !shownNow.includes(element.localName);
  find("#store").value = String(now.store);
  find("#px").value = String(now.px);
  find("#size").hidden = now.view !== "grid";
  menu(false);
  countChanges(now.store);
  find("#sidebar").show(now);
  const shown = find(`#main > :not([hidden])`);
  if (shown) shown.show(now);
  if (before === "record" && view === "grid") {
    find("#tiles").focus({preventScroll: true});
    if (now.open === undefined) say("All images"); // else the record says its name
  }
  if (!shown) go({view: "grid"}, {replace: true});
}

function theme(chosen) {
  if (chosen) document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
  find("#theme").replaceChildren(icon(chosen || "system"));
  find("#theme").ariaLabel = find("#theme").title = `Colors: ${chosen ?? "same as the system"}`;
}

/** Show a note at the bottom of the page if the store was replaced or removed. */
async function checkStore() {
  const {note} = await api(`/api/${state().store}/note`).catch((error) => ({note: error.message}));
  bar({note: note ?? ""});
}

async function start() {
  theme(localStorage.getItem("theme"));
  find("#theme").onclick = () => {
    const next = {light: "dark", dark: ""}[localStorage.getItem("theme") ?? ""] ?? "light";
    localStorage.setItem("theme", next);
    theme(next || null);
  };
  find("#menu").append(icon("menu"));
  find("#help").append(icon("keys"));
  find("#menu").onclick = () => menu(!document.body.classList.contains("menu"));
  find("#help").onclick = help;
  find("#home").onclick = (event) => { event.preventDefault(); go({view: "overview", q: null, at: null}); };
  find("#store").onchange = async () => {
    const {q, sort} = state(), store = find("#store").value;
    const {ok} = await ask(`/api/${store}/rows?${new URLSearchParams({q, sort, count: 0})}`);
    go({store, ...ok && {q, sort}}); // keep the search if it is valid in the other store
  };
  find("#px").oninput = () => go({px: find("#px").value}, {replace: true});
  keys({"?": ["Show these keys", help], Escape: ["Back to the images", () => go({view: null})]});
  addEventListener("keydown", pressed);
  try {
    const views = ["sidebar", ...[...find("#main").querySelectorAll(":scope > :not(.loading)")].map((view) => view.localName.slice(3))];
    const [found] = await Promise.all([api("/api/stores"), ...views.map((name) => import(`./${name}.js`))]);
    stores.push(...found);
  } catch (error) {
    find("#main").replaceChildren(make("p", {class: "error", role: "alert"}, error.message));
    return;
  }
  if (state().store >= stores.length) history.replaceState(null, "", url({store: 0}));
  if (stores.length === 1) find("#store").replaceWith(make("span", {id: "store", title: escaped(stores[0].place)}, shortPlace(0)));
  else find("#store").replaceChildren(...stores.map((_, s) => make("option", {value: String(s)}, shortPlace(s))));
  addEventListener("popstate", show);
  addEventListener("focus", checkStore);
  show();
  checkStore();
}

addEventListener("DOMContentLoaded", start);
