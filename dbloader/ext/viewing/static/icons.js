/** Icons of 24 × 24 units, drawn as lines in the color of the text, and pictures of records. */
import {escaped, load, make, picture} from "./app.js";

const PATHS = {
  grid: "M4 4h7v7H4zM13 4h7v7h-7zM4 13h7v7H4zM13 13h7v7h-7z", review: "M4 5h16v14H4zM8 12l3 3 5-6",
  training: "M4 8V4h4M16 4h4v4M20 16v4h-4M8 20H4v-4M8 8h8v8H8z", compare: "M4 4h16v16H4zM4 9.3h16M4 14.6h16M9.3 4v16M14.6 4v16",
  report: "M6 3h9l4 4v14H6zM15 3v4h4M9 12h7M9 16h7", duplicates: "M8 8h12v12H8zM16 8V4H4v12h4",
  overview: "M4 4h7v9H4zM13 4h7v5h-7zM13 11h7v9h-7zM4 15h7v5H4z", classes: "M4 20V10h4v10M10 20V4h4v16M16 20v-7h4v7",
  size: "M4 14v6h6M20 10V4h-6M4 20l6-6M20 4l-6 6", files: "M4 6h6l2 2h8v11H4z",
  sides: "M4 5h7v14H4zM13 5h7v14h-7z", search: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13M15.5 15.5L21 21",
  menu: "M4 6h16M4 12h16M4 18h16", keys: "M9 9a3 3 0 1 1 4 2.8c-.7.3-1 .8-1 1.7M12 17v.5",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M5 19l1.4-1.4M17.6 6.4L19 5",
  dark: "M20 14A8.5 8.5 0 0 1 10 4a8.5 8.5 0 1 0 10 10z", system: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M12 3v18M15 4v16M18 6v12",
  nothing: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13M15.5 15.5L21 21M8 8l5 5M13 8l-5 5", changes: "M4 20l1-4L16 5l3 3L8 19zM13 8l3 3",
};

/** Return an icon. Screen readers do not read it. */
export const icon = (name) =>
  make("svg:svg", {class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true"}, make("svg:path", {d: PATHS[name]}));

/** Return the picture of a record. If it cannot be shown, a sign with the reason takes its place. */
export function pictured(store, index, px = 160) {
  const image = make("img", {alt: "", loading: "lazy", draggable: false});
  load(image, picture("thumb", store, index, {px}),
    (why) => image.replaceWith(make("span", {class: "broken", title: escaped(why)}, icon("nothing"))));
  return image;
}

/** Return what a page shows when it has nothing: an icon, a sentence, a second sentence, and at most one thing to do. */
export const empty = (name, text, more, action) =>
  make("div", {class: "empty"}, icon(name), make("strong", {}, text), more ? make("span", {}, more) : null, action);
