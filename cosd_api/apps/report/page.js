"use strict";
// Shows the card of the element under the pointer or the keyboard's focus. All texts are precomputed.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const card = document.getElementById("card");
  const answer = document.getElementById("answer");
  const timeline = document.getElementById("timeline");
  const tokens = [...answer.querySelectorAll("[data-t]")];
  const bars = timeline ? [...timeline.querySelectorAll("[data-r]")] : [];
  const barOf = new Map(bars.map((bar) => [bar.dataset.r, bar]));

  const tokensOf = new Map();
  data.tokens.forEach((token, at) => {
    for (const request of token.requests) {
      if (!tokensOf.has(request)) tokensOf.set(request, []);
      tokensOf.get(request).push(at);
    }
  });

  // The card is filled with text, never with markup.
  const make = (tag, name, text) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text) made.textContent = text;
    return made;
  };
  const fill = (entry) => {
    const top = make("div", "top");
    const title = make("b");
    title.append(make("bdi", "", entry.title));
    top.append(title, make("span", `mark ${entry.standing}`, entry.mark));
    const table = make("table");
    for (const row of entry.rows) {
      const line = make("tr");
      for (const cell of row) {
        const made = make("td");
        made.append(make("bdi", "", cell));
        line.append(made);
      }
      table.append(line);
    }
    const words = entry.words.map((line) => make("div", `why ${entry.standing}`, line));
    const foot = make("div", "foot");
    foot.append(...entry.foot.map((line) => make("div", "", line)));
    card.replaceChildren(top, table, ...words, foot);
  };

  const place = (anchor) => {
    const boxes = anchor.getClientRects();
    const box = boxes[0] || anchor.getBoundingClientRect();
    const wide = card.offsetWidth;
    const high = card.offsetHeight;
    const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - wide - 8));
    const below = (boxes[boxes.length - 1] || box).bottom + 8;
    const top = below + high > window.innerHeight && box.top > high + 16 ? box.top - high - 8 : below;
    card.style.transform = `translate(${Math.round(left + window.scrollX)}px, ${Math.round(top + window.scrollY)}px)`;
  };

  // The open card, and its marks elsewhere on the page.
  let marked = [];
  let open = null; // the element of the card
  let kept = null; // the focused element, which the card returns to
  const mark = (element, name) => {
    if (!element) return;
    element.classList.add(name);
    marked.push([element, name]);
  };
  const hide = () => {
    for (const [element, name] of marked) element.classList.remove(name);
    marked = [];
    if (open) open.removeAttribute("aria-describedby");
    open = null;
    card.hidden = true;
  };
  const show = (element) => {
    if (open === element) return;
    hide();
    open = element;
    const at = element.dataset.t;
    const entry = at === undefined ? data.requests[element.dataset.r] : data.tokens[at];
    fill(entry);
    card.hidden = false;
    element.setAttribute("aria-describedby", "card");
    mark(element, "on");
    if (at === undefined) for (const other of tokensOf.get(element.dataset.r) || []) mark(tokens[other], "near");
    else for (const request of entry.requests) mark(barOf.get(request), "on");
    place(element);
  };
  const back = () => (kept && document.activeElement === kept ? show(kept) : hide());

  // The pointer.
  const subject = (target) => (target instanceof Element ? target.closest("[data-t],[data-r]") : null);
  document.addEventListener("pointerover", (event) => {
    if (event.target instanceof Node && card.contains(event.target)) return;
    const found = subject(event.target);
    if (found) show(found);
    else if (open) back();
  });
  document.addEventListener("pointerdown", (event) => {
    const found = subject(event.target);
    if (found) take(found, false);
  });
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("[data-go]") : null;
    if (!link) return;
    event.preventDefault();
    take(tokens[link.dataset.go], true);
  });

  // The keyboard: each of the two lists is one Tab stop, with arrow keys inside.
  const take = (element, scroll) => {
    const list = element.closest("[data-roving]");
    for (const other of list.querySelectorAll('[tabindex="0"]')) other.setAttribute("tabindex", "-1");
    element.setAttribute("tabindex", "0");
    kept = element;
    if (scroll) element.scrollIntoView({ block: "nearest" });
    if (document.activeElement === element) show(element);
    else element.focus({ preventScroll: true });
  };
  const step = (list, at, key) => {
    const decisive = list === tokens ? data.decisive : [];
    if (key === "ArrowRight") return at + 1;
    if (key === "ArrowLeft") return at - 1;
    if (key === "Home") return 0;
    if (key === "End") return list.length - 1;
    if (key === "ArrowDown") return list === tokens ? decisive.find((other) => other > at) : at + 1;
    if (key === "ArrowUp") return list === tokens ? decisive.findLast((other) => other < at) : at - 1;
    return undefined;
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hide();
    const element = subject(event.target);
    if (!element || event.ctrlKey || event.metaKey || event.altKey) return undefined;
    const list = element.dataset.t === undefined ? bars : tokens;
    const next = step(list, list.indexOf(element), event.key);
    if (next === undefined && !event.key.startsWith("Arrow")) return undefined;
    event.preventDefault();
    if (next !== undefined && list[next]) take(list[next], true);
    return undefined;
  });
  document.addEventListener("focusin", (event) => {
    const found = subject(event.target);
    if (!found) return;
    kept = found;
    show(found);
  });
  document.addEventListener("focusout", (event) => {
    if (event.target === kept && open === kept) hide();
  });

  for (const list of [tokens, bars]) if (list.length) list[0].setAttribute("tabindex", "0");
  document.documentElement.classList.add("ready");
})();
