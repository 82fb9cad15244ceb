// What pages do beyond being read: they stay current while somebody looks, times are in the browser's zone, lines can be copied, and the
// trail can be followed. Every page works without any of it.
"use strict";

(() => {
  const EVERY = 5000;
  const store = {
    get(name) { try { return localStorage.getItem("oncely." + name); } catch { return null; } },
    set(name, value) { try { localStorage.setItem("oncely." + name, value); } catch { /* private windows keep nothing */ } },
  };
  const find = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));

  // Times: UTC as the server writes them, or the browser's own zone.

  const pad = (number, digits = 2) => String(number).padStart(digits, "0");

  const written = (at, form, utc) => {
    const part = (name) => (utc ? at["getUTC" + name]() : at["get" + name]());
    const day = `${part("FullYear")}-${pad(part("Month") + 1)}-${pad(part("Date"))}`;
    const minute = `${pad(part("Hours"))}:${pad(part("Minutes"))}`;
    if (form === "minute") return minute;
    if (form === "day") return `${pad(part("Date"))} ${at.toLocaleString("en", { month: "short", timeZone: utc ? "UTC" : undefined })}`;
    const second = `${minute}:${pad(part("Seconds"))}` + (form === "exact" ? `.${pad(part("Milliseconds"), 3)}` : "");
    return `${day} ${second}${utc ? "Z" : ""}`;
  };

  // How far the browser's zone is ahead.
  const ahead = (at) => {
    const minutes = -at.getTimezoneOffset();
    return `${minutes < 0 ? "-" : "+"}${pad(Math.floor(Math.abs(minutes) / 60))}:${pad(Math.abs(minutes) % 60)}`;
  };

  const zone = (within = document) => {
    const utc = store.get("zone") === "utc";
    for (const element of all("time[datetime], svg [data-time]", within)) {
      const at = new Date(element.getAttribute("datetime") || element.dataset.time);
      if (Number.isNaN(at.getTime())) continue;
      if (element.dataset.form === "age") element.title = written(at, "", utc);
      else element.textContent = written(at, element.dataset.form, utc);
      if (element.dateTime && element.dataset.form !== "age") element.title = written(at, "exact", !utc) + (utc ? ` ${ahead(at)}` : "");
    }
    const button = find("#zone");
    if (button) {
      button.hidden = false;
      button.textContent = utc ? "UTC" : `Local ${ahead(new Date())}`;
      button.title = utc ? "Show times in this browser's zone" : "Show times in UTC";
    }
  };

  // Staying current.

  const tags = new Map();
  let paused = false;
  let current = new Date();

  const stale = (why) => {
    const told = find("#stale");
    if (!told) return;
    told.textContent = `${why} What you see is from ${written(current, "", store.get("zone") === "utc")}.`;
    told.hidden = false;
  };

  const poll = () => {
    if (document.visibilityState === "visible" && !paused && window.htmx) window.htmx.trigger(document.body, "poll");
  };

  document.addEventListener("htmx:configRequest", (event) => {
    const tag = tags.get(event.detail.path);
    if (tag) event.detail.headers["If-None-Match"] = tag;
  });

  document.addEventListener("htmx:afterRequest", (event) => {
    const { xhr, pathInfo, successful } = event.detail;
    if (!xhr) return;
    if (successful || xhr.status === 304) {
      const tag = xhr.getResponseHeader("ETag");
      if (tag && pathInfo) tags.set(pathInfo.requestPath, tag);
      current = new Date();
      const told = find("#stale");
      if (told) told.hidden = true;
    } else if (xhr.status === 401) {
      stale("You are not signed in any more: load the page again.");
    } else if (xhr.status === 0) {
      stale("The console does not answer.");
    } else {
      const found = new DOMParser().parseFromString(xhr.responseText || "", "text/html").querySelector("h1");
      stale(`${found ? found.textContent.trim() : "This page could not be loaded"}.`);
    }
  });

  // A sentence that says the same again is not read out again.
  document.addEventListener("htmx:oobBeforeSwap", (event) => {
    const { target, fragment } = event.detail;
    if (target && target.id === "verdict" && fragment && fragment.textContent.trim() === target.textContent.trim()) {
      event.detail.shouldSwap = false;
    }
  });

  // What somebody has opened stays open.
  const open = new Set();
  document.addEventListener("toggle", (event) => {
    if (!event.target.id) return;
    if (event.target.open) open.add(event.target.id);
    else open.delete(event.target.id);
  }, true);

  document.addEventListener("htmx:afterSettle", () => {
    for (const id of open) {
      const element = document.getElementById(id);
      if (element && !element.open) element.open = true;
    }
    zone();
  });

  // Lines to copy.

  const copying = () => {
    if (!navigator.clipboard) return;
    for (const holder of all(".copy")) {
      if (find("button", holder)) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "Copy";
      button.setAttribute("aria-label", "Copy this text");
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(find("pre", holder).textContent);
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
      holder.append(button);
    }
  };

  // Following the trail: one connection, closed while nobody looks, and begun again behind the last row that came.

  const MOST = 500;

  const follow = (button) => {
    let source = null;
    let last = null;
    let wanted = false;
    const close = () => { if (source) source.close(); source = null; };
    const begin = () => {
      const url = new URL(button.dataset.follow, location.href);
      if (last) url.searchParams.set("after", last);
      source = new EventSource(url);
      source.addEventListener("row", (event) => {
        last = event.lastEventId || last;
        // Another one after each time that the page was brought up to date.
        const body = find("#rows");
        if (!body) return;
        const rows = document.createElement("template");
        rows.innerHTML = event.data;
        for (const row of Array.from(rows.content.children)) {
          if (document.getElementById(row.id)) continue;
          body.prepend(row);
        }
        while (body.children.length > MOST) body.lastElementChild.remove();
        zone(body);
      });
    };
    const update = () => {
      if (wanted && document.visibilityState === "visible") { if (!source) begin(); } else close();
      button.setAttribute("aria-pressed", String(wanted));
      button.textContent = wanted ? "Following" : "Follow";
    };
    button.hidden = false;
    button.addEventListener("click", () => { wanted = !wanted; update(); });
    document.addEventListener("visibilitychange", update);
    update();
  };

  document.addEventListener("DOMContentLoaded", () => {
    zone();
    copying();
    const button = find("#zone");
    if (button) button.addEventListener("click", () => {
      store.set("zone", store.get("zone") === "utc" ? "local" : "utc");
      zone();
    });
    const pause = find("#pause");
    if (pause) {
      pause.hidden = false;
      pause.addEventListener("click", () => {
        paused = !paused;
        pause.setAttribute("aria-pressed", String(paused));
        pause.textContent = paused ? "Refresh again" : "Stop refreshing";
      });
    }
    const following = find("[data-follow]");
    if (following) follow(following);
    setInterval(poll, EVERY);
    document.addEventListener("visibilitychange", poll);
  });
})();
