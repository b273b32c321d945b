"use strict";
// The text view: point at a word, tap it, or tab to the words and use the arrow keys, and see its figures.
// All numbers were written and put on their scales beforehand; this only shows them.

function node(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

const LONG = 20; // characters from which an entry is several words, and has a line to itself

for (const view of document.querySelectorAll("figure.passage")) {
  const data = JSON.parse(view.querySelector("script").textContent);
  const words = [...view.querySelectorAll(".words > span")];
  const panel = view.querySelector(".panel");
  const legends = [...view.querySelectorAll(".legend")];
  const switches = [...view.querySelectorAll("input[type=radio]")];
  const hint = [...panel.childNodes];
  const lead = data.lead; // words at the beginning of which nothing is known: they are looked back at, and not chosen
  let chosen = 0;
  let current = -1;

  // A layer colours every word, or (weights) the words that the current one looks back at.
  function shade() {
    const layer = data.shades[chosen];
    const back = layer && layer.links ? new Map(current < 0 ? [] : layer.links[current]) : null;
    words.forEach((word, i) => {
      const look = !layer ? "" : back ? back.get(i) || "" : layer.looks[i];
      word.className = i === current ? `${look} on` : look;
    });
    legends.forEach((legend, i) => { legend.hidden = i !== chosen; });
  }

  function lists(parts) {
    const box = node("div", undefined, "parts");
    for (const [part, tokens] of parts) {
      const table = node("table", undefined, tokens.some(([token]) => token.length > LONG) ? "spans" : undefined);
      table.append(node("caption", part));
      for (const [token, share, percent, own] of tokens) {
        const row = table.insertRow();
        const bar = node("td", percent, "bar");
        bar.style.backgroundSize = `${share}% 100%`;
        row.append(node("td", token, own ? "own" : ""), bar);
      }
      box.append(table);
    }
    return box;
  }

  function tell() {
    const word = data.words[current];
    const head = node("p");
    head.append(node("b", word.text), node("span", `word ${current + 1 - lead} of ${words.length - lead}`));
    const list = node("dl");
    for (const [name, text] of word.numbers) {
      const pair = node("div");
      pair.append(node("dt", name), node("dd", text));
      list.append(pair);
    }
    panel.classList.add("told");
    panel.replaceChildren(head, list, lists(word.lists));
  }

  function forget() {
    words[current].setAttribute("aria-selected", "false");
    current = -1;
    panel.classList.remove("told");
    panel.replaceChildren(...hint);
    shade();
  }

  function select(place, focus) {
    if (current >= 0) words[current].setAttribute("aria-selected", "false");
    words.forEach((word, i) => { word.tabIndex = i === place ? 0 : -1; });
    current = place;
    words[place].setAttribute("aria-selected", "true");
    shade();
    tell();
    if (focus) words[place].focus();
  }

  // The word nearest to this one on the line above (-1) or below (1).
  function onLine(place, direction) {
    const box = words[place].getBoundingClientRect();
    let best = place, line = null, distance = Infinity;
    for (let i = place + direction; i >= 0 && i < words.length; i += direction) {
      const other = words[i].getBoundingClientRect();
      if (Math.abs(other.top - box.top) < box.height / 2) continue;
      if (line === null) line = other.top;
      if (Math.abs(other.top - line) > box.height / 2) break;
      const away = Math.abs(other.left + other.right - box.left - box.right);
      if (away < distance) { best = i; distance = away; }
    }
    return best;
  }

  const box = view.querySelector(".words");
  const next = (i) => Math.min(i + 1, words.length - 1);
  const previous = (i) => Math.max(i - 1, 0);
  const leftwards = getComputedStyle(box).direction === "rtl";
  const moves = {
    ArrowRight: leftwards ? previous : next,
    ArrowLeft: leftwards ? next : previous,
    ArrowDown: (i) => onLine(i, 1),
    ArrowUp: (i) => onLine(i, -1),
    Home: () => lead,
    End: () => words.length - 1,
  };

  box.setAttribute("role", "listbox");
  box.setAttribute("aria-orientation", "horizontal");
  words.forEach((word, i) => {
    word.setAttribute("role", "option");
    word.setAttribute("aria-selected", "false");
    word.setAttribute("aria-label", word.title ? `${data.words[i].text}, ${word.title}` : data.words[i].text);
    word.removeAttribute("title"); // the panel tells it
    word.tabIndex = i === lead ? 0 : -1;
    if (i < lead) {
      word.setAttribute("aria-disabled", "true");
      return;
    }
    const point = (event) => { if (event.pointerType === "mouse" && i !== current) select(i, false); };
    word.addEventListener("pointerenter", point);
    word.addEventListener("click", () => select(i, true));
    word.addEventListener("focus", () => { if (i !== current) select(i, false); });
  });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && current >= 0) forget();
    const move = moves[event.key];
    const place = words.indexOf(event.target);
    if (!move || place < 0 || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const target = move(place);
    select(target < lead ? place : target, true);
  });
  switches.forEach((choice, i) => choice.addEventListener("change", () => { chosen = i; shade(); }));
  view.querySelectorAll(".live").forEach((part) => { part.hidden = false; });
  // A browser may keep an earlier choice when the page is loaded again.
  chosen = Math.max(0, switches.findIndex((choice) => choice.checked));
  if (data.first === null) shade(); else select(data.first, false);
}
