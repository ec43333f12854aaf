"use strict";
// What pages do without it: everything. With it they live, show times as their reader wants, and have shortcuts.
(() => {
  const root = document.documentElement;
  const kept = (name, value) => {
    try {
      if (value === undefined) return localStorage.getItem(name);
      localStorage.setItem(name, value);
    } catch { /* Private windows may keep nothing. */ }
    return null;
  };

  // Before anything is painted, so that nothing flashes.
  const theme = kept("theme");
  if (theme) root.dataset.theme = theme;

  let paused = false;
  let local = kept("times") !== "utc";

  const pad = (number) => String(number).padStart(2, "0");
  const written = (date) => local
    ? `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`
    : `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
  const times = (within) => {
    for (const time of within.querySelectorAll("time[datetime]")) {
      const shown = written(new Date(time.dateTime));
      if (time.classList.contains("ago")) time.title = shown;
      else time.textContent = shown;
    }
  };

  // Which field it is, whenever the page is drawn again.
  const named = (field) => `${field.form?.getAttribute("action")} ${field.name} ${field.closest("details") !== null}`;

  // Puts new content in the place of old, unless somebody is in the middle of something there. What was typed stays.
  const replace = (old, html) => {
    const chosen = getSelection();
    if (chosen && !chosen.isCollapsed && old.contains(chosen.anchorNode)) return;
    const active = document.activeElement;
    const typing = active && old.contains(active) && active.matches("input, select, textarea");
    if (typing) return;
    const href = active && old.contains(active) ? active.getAttribute("href") : null;
    const typed = [...old.querySelectorAll("input:not([type=hidden]), textarea")]
      .filter((field) => field.value !== field.defaultValue).map((field) => [named(field), field.value]);
    const opened = [...old.querySelectorAll("details[open] > summary")].map((summary) => summary.textContent);
    old.innerHTML = html;
    for (const field of old.querySelectorAll("input:not([type=hidden]), textarea")) {
      const kept = typed.find(([name]) => name === named(field));
      if (kept) field.value = kept[1];
    }
    for (const summary of old.querySelectorAll("details > summary")) {
      if (opened.includes(summary.textContent)) summary.parentElement.open = true;
    }
    times(old);
    if (href) [...old.querySelectorAll("a")].find((link) => link.getAttribute("href") === href)?.focus();
  };

  const follow = () => {
    const live = document.getElementById("live");
    if (!live) return;
    let source = null;
    const state = document.getElementById("live-state");
    const tell = (text) => { if (state) state.textContent = text; };
    const open = () => {
      source = new EventSource("/dashboard/stream");
      source.addEventListener("live", (event) => { replace(live, event.data); tell("Live"); });
      source.addEventListener("error", () => tell("Reconnecting…"));
    };
    const close = () => { source?.close(); source = null; };
    // A page that nobody sees costs nothing.
    const settle = () => {
      if (paused || document.hidden) close(); else if (!source) open();
      if (paused) tell("Paused");
    };
    document.addEventListener("visibilitychange", settle);
    document.addEventListener("paused", settle);
    settle();
  };

  // Parts that are asked for again while they change.
  const refresh = () => {
    const again = async () => {
      const part = document.querySelector("[data-refresh]");
      if (!part) return;
      if (!paused && !document.hidden) {
        try {
          const answer = await fetch(location.href, { headers: { accept: "text/html" } });
          const page = new DOMParser().parseFromString(await answer.text(), "text/html");
          const fresh = page.getElementById(part.id);
          if (fresh) {
            replace(part, fresh.innerHTML);
            if (fresh.dataset.refresh) part.dataset.refresh = fresh.dataset.refresh;
            else delete part.dataset.refresh;
          }
        } catch { /* The server is away for a moment. */ }
      }
      setTimeout(again, Number(part.dataset.refresh) || 1000);
    };
    const part = document.querySelector("[data-refresh]");
    if (part) setTimeout(again, Number(part.dataset.refresh) || 1000);
  };

  const pause = () => {
    paused = !paused;
    const button = document.getElementById("pause");
    if (button) {
      button.setAttribute("aria-pressed", String(paused));
      button.textContent = paused ? "Resume" : "Pause";
    }
    document.dispatchEvent(new Event("paused"));
  };

  const dark = () => {
    const now = root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    kept("theme", root.dataset.theme);
  };

  const clock = () => {
    local = !local;
    kept("times", local ? "local" : "utc");
    const button = document.getElementById("times");
    if (button) button.textContent = local ? "Local time" : "UTC";
    times(document);
  };

  const shortcuts = () => {
    let going = false;
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.matches("input, select, textarea")) return;
      if (going) {
        going = false;
        document.querySelector(`a[data-key="${CSS.escape(event.key)}"]`)?.click();
        return;
      }
      const doing = {
        g: () => { going = true; },
        "/": () => document.getElementById("find")?.focus(),
        p: pause,
        t: dark,
        u: clock,
        "?": () => document.getElementById("keys")?.showModal(),
      }[event.key];
      if (doing) { event.preventDefault(); doing(); }
    });
  };

  document.addEventListener("DOMContentLoaded", () => {
    times(document);
    const times_button = document.getElementById("times");
    if (times_button) times_button.textContent = local ? "Local time" : "UTC";
    document.getElementById("pause")?.addEventListener("click", pause);
    document.getElementById("theme")?.addEventListener("click", dark);
    times_button?.addEventListener("click", clock);
    follow();
    refresh();
    shortcuts();
  });
})();
