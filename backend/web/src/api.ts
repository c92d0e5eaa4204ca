function meta(name: string): string {
	return document.querySelector<HTMLMetaElement>(`meta[name="${name}"]`)?.content ?? "";
}

// api is the address of something in the page's workspace.
export function api(path: string): string {
	return `/api/w/${encodeURIComponent(meta("workspace"))}/${path}`;
}

export async function getJSON<T>(url: string, signal?: AbortSignal): Promise<T> {
	const r = await fetch(url, { headers: { Accept: "application/json" }, signal: signal ?? null });
	if (!r.ok) throw new Error(String(r.status));
	return (await r.json()) as T;
}

// listen follows a stream of server-sent events until it says that it has ended.
export function listen(url: string, on: Record<string, (data: string) => void>, open?: () => void): EventSource {
	const s = new EventSource(url);
	if (open) s.addEventListener("open", open);
	for (const [name, f] of Object.entries(on)) s.addEventListener(name, (e) => f((e as MessageEvent<string>).data));
	for (const name of ["end", "problem"]) s.addEventListener(name, () => s.close());
	addEventListener("pagehide", () => s.close());
	return s;
}
