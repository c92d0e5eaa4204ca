import { api, getJSON, listen } from "./api.js";
import { points } from "./chart.js";
import { ago, bytes, network } from "./format.js";
import { LogBuffer, safeClass } from "./log.js";
import { join, parent } from "./tree.js";
function one(selector, within = document) {
    return within.querySelector(selector);
}
function times() {
    const now = Date.now();
    for (const t of document.querySelectorAll("time[datetime]")) {
        const text = ago(Date.parse(t.dateTime), now);
        if (t.textContent !== text)
            t.textContent = text;
    }
}
function stale(yes) {
    const note = one("[data-stale]");
    if (note)
        note.hidden = !yes;
}
async function refresh() {
    const r = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!r.ok)
        throw new Error(String(r.status));
    stale(false);
    if (r.redirected) {
        location.assign(r.url);
        return;
    }
    const fresh = new DOMParser().parseFromString(await r.text(), "text/html");
    for (const old of document.querySelectorAll("[data-live]")) {
        const next = one(`[data-live="${old.dataset.live}"]`, fresh);
        if (next === null || next.innerHTML === old.innerHTML || old.contains(document.activeElement))
            continue;
        old.replaceChildren(...document.adoptNode(next).childNodes);
        if (next.dataset.liveEvery === undefined)
            delete old.dataset.liveEvery;
    }
    times();
}
function live() {
    const region = one("[data-live]");
    if (region === null)
        return;
    let waiting = false;
    const soon = (ms) => {
        if (waiting)
            return;
        waiting = true;
        setTimeout(async () => {
            if (!document.hidden)
                await refresh().catch(() => stale(true));
            waiting = false;
        }, ms);
    };
    const id = region.dataset.events;
    if (id !== undefined) {
        const loaded = Date.now();
        listen(api(`execution-workspaces/${id}/events`), {
            event: (data) => {
                const e = JSON.parse(data);
                if (Date.parse(e.time) > loaded - 1000)
                    soon(300);
            },
        });
    }
    const kind = region.dataset.live;
    if (kind === "list" || kind === "workers")
        setInterval(() => soon(0), 5000);
    if (kind === "detail")
        soon(2500);
    if (kind === "worker") {
        setInterval(() => {
            if (region.dataset.liveEvery !== undefined)
                soon(0);
        }, 2000);
    }
}
const steps = {
    register: "Looking up the repository",
    policy: "Checking the policy",
    resolve: "Resolving the selector",
    objects: "Fetching objects",
    tree: "Preparing the tree",
    materialize: "Making the working tree",
    git: "Setting up git",
    clean: "Checking the source for changes",
    apply: "Applying changes",
    record: "Recording evidence",
};
function creation() {
    const box = one("[data-creation]");
    if (box === null)
        return;
    const bar = one("progress", box);
    const percent = one("[data-percent]", box);
    const list = one("ol", box);
    listen(api(`creations/${box.dataset.creation}/events`), {
        progress: (data) => {
            const c = JSON.parse(data);
            if (bar)
                bar.value = c.percent;
            if (percent)
                percent.textContent = `${c.percent} %`;
            list?.replaceChildren(...c.steps.map((s) => {
                const li = document.createElement("li");
                li.textContent = steps[s.name] ?? s.name;
                return li;
            }));
            if (c.state !== "running")
                location.reload();
        },
    });
}
function completion() {
    const input = one("[data-refs]");
    const repo = one("[data-repository]");
    const list = one("#refs");
    if (input === null || repo === null || list === null)
        return;
    let last = new AbortController();
    let timer = 0;
    const ask = async () => {
        last.abort();
        last = new AbortController();
        const part = input.value.replace(/^(branch|tag):/, "");
        const url = api(`repositories/${encodeURIComponent(repo.value)}/refs?limit=50&prefix=${encodeURIComponent(part)}`);
        const got = await getJSON(url, last.signal).catch(() => null);
        if (got === null)
            return;
        list.replaceChildren(...got.items.map((r) => {
            const o = document.createElement("option");
            o.value = r.selector;
            o.textContent = r.commit_id.slice(0, 10);
            return o;
        }));
    };
    const later = () => {
        clearTimeout(timer);
        timer = window.setTimeout(() => void ask(), 150);
    };
    input.addEventListener("input", later);
    repo.addEventListener("change", () => {
        input.value = "";
        later();
    });
}
function tree() {
    const input = one("[data-tree]");
    const box = one("[data-tree-picker]");
    const select = one("[data-allocation]");
    if (input === null || box === null || select === null)
        return;
    input.removeAttribute("list");
    const show = async (path) => {
        box.setAttribute("aria-busy", "true");
        const url = api(`execution-workspaces/${select.value}/directories?path=${encodeURIComponent(path)}`);
        const got = await getJSON(url).catch(() => null);
        if (got === null) {
            box.hidden = true;
            if (path !== "")
                await show("");
            return;
        }
        const here = document.createElement("div");
        here.className = "here";
        here.textContent = path === "" ? "the root" : `${path}/`;
        const go = (label, to) => {
            const b = document.createElement("button");
            b.type = "button";
            b.textContent = label;
            b.addEventListener("click", () => {
                input.value = to;
                void show(to).then(() => one("button", box)?.focus());
            });
            return b;
        };
        const rows = [here];
        if (path !== "")
            rows.push(go("..", parent(path)));
        for (const n of got.names)
            rows.push(go(`${n}/`, join(path, n)));
        box.replaceChildren(...rows);
        box.removeAttribute("aria-busy");
        box.hidden = rows.length === 1;
    };
    const text = one("[data-network]");
    select.addEventListener("change", () => {
        input.value = "";
        void show("");
        if (text === null)
            return;
        text.textContent = "…";
        getJSON(api(`execution-workspaces/${select.value}/evidence`))
            .then((e) => {
            text.textContent = network(e.network, e.network_rules ?? []);
        })
            .catch(() => {
            text.textContent = "as the workspace has it";
        });
    });
    void show(input.value);
}
function log() {
    const box = one("[data-log]");
    const list = box && one("ol", box);
    if (box === null || list === null)
        return;
    const tools = one("[data-logtools]");
    const follow = one("[data-follow]");
    const search = one("#logsearch");
    const matches = one("[data-matches]");
    if (tools)
        tools.hidden = false;
    let buffer = new LogBuffer(5000);
    let hit = -1;
    const draw = (line) => {
        const li = document.createElement("li");
        for (const s of line) {
            const c = safeClass(s.c);
            if (c === "") {
                li.append(s.t);
                continue;
            }
            const span = document.createElement("span");
            span.className = c;
            span.textContent = s.t;
            li.append(span);
        }
        return li;
    };
    const mark = (jump) => {
        const text = search?.value ?? "";
        const found = buffer.find(text);
        for (const li of list.querySelectorAll(".hit"))
            li.classList.remove("hit", "now");
        for (const i of found)
            list.children[i]?.classList.add("hit");
        if (matches)
            matches.textContent = text === "" ? "" : `${found.length} ${found.length === 1 ? "line" : "lines"}`;
        if (jump && found.length > 0) {
            hit = (hit + 1) % found.length;
            list.children[found[hit] ?? 0]?.scrollIntoView({ block: "center" });
            if (follow)
                follow.checked = false;
        }
        const now = hit >= 0 ? found[hit] : undefined;
        if (now !== undefined)
            list.children[now]?.classList.add("now");
    };
    const bottom = () => {
        if (follow?.checked)
            box.scrollTop = box.scrollHeight;
    };
    search?.addEventListener("input", () => {
        hit = -1;
        mark(false);
    });
    search?.addEventListener("keydown", (e) => {
        if (e.key === "Enter")
            mark(true);
    });
    follow?.addEventListener("change", bottom);
    box.addEventListener("wheel", (e) => {
        if (e.deltaY < 0 && follow)
            follow.checked = false;
    });
    bottom();
    const url = api(`workers/${box.dataset.log}/logs?follow=true&tail=262144&stream=${box.dataset.stream}`);
    let begun = false;
    listen(url, {
        lines: (data) => {
            if (!begun)
                list.replaceChildren();
            begun = true;
            const change = buffer.apply(JSON.parse(data));
            for (let i = 0; i < change.drop; i++)
                list.firstElementChild?.remove();
            while (list.children.length > change.from)
                list.lastElementChild?.remove();
            list.append(...buffer.lines.slice(change.from).map(draw));
            if (search?.value)
                mark(false);
            bottom();
        },
    }, () => {
        buffer = new LogBuffer(5000);
        begun = false;
    });
}
function usage() {
    const box = one("[data-usage]");
    if (box === null)
        return;
    const timer = setInterval(async () => {
        const u = await getJSON(api(`workers/${box.dataset.usage}/usage`)).catch(() => null);
        const last = u?.samples.at(-1);
        if (!u || !last)
            return;
        for (const of of ["cpu", "memory"]) {
            one(`[data-line="${of}"]`, box)?.setAttribute("points", points(u.samples, of));
            const now = one(`[data-now="${of}"]`, box);
            if (now)
                now.textContent = of === "cpu" ? `${last.cpu_percent.toFixed(0)} %` : bytes(last.memory_bytes);
        }
        if (one(".s-running, .s-starting") === null)
            clearInterval(timer);
    }, 1000);
}
times();
setInterval(times, 5000);
live();
creation();
completion();
tree();
log();
usage();
