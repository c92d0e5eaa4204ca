function meta(name) {
    return document.querySelector(`meta[name="${name}"]`)?.content ?? "";
}
export function api(path) {
    return `/api/w/${encodeURIComponent(meta("workspace"))}/${path}`;
}
export async function getJSON(url, signal) {
    const r = await fetch(url, { headers: { Accept: "application/json" }, signal: signal ?? null });
    if (!r.ok)
        throw new Error(String(r.status));
    return (await r.json());
}
export function listen(url, on, open) {
    const s = new EventSource(url);
    if (open)
        s.addEventListener("open", open);
    for (const [name, f] of Object.entries(on))
        s.addEventListener(name, (e) => f(e.data));
    for (const name of ["end", "problem"])
        s.addEventListener(name, () => s.close());
    addEventListener("pagehide", () => s.close());
    return s;
}
