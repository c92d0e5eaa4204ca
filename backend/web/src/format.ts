// What the server says in words too (backend/format.go): keep them alike.

export function ago(then: number, now: number): string {
	const s = Math.trunc((now - then) / 1000);
	if (Math.abs(s) < 5) return "just now";
	return s < 0 ? `in ${rough(-s)}` : `${rough(s)} ago`;
}

function rough(s: number): string {
	if (s < 60) return `${s} s`;
	if (s < 3600) return `${Math.floor(s / 60)} min`;
	if (s < 48 * 3600) return `${Math.floor(s / 3600)} h`;
	const days = Math.floor(s / 86400);
	if (days < 60) return `${days} days`;
	return days < 730 ? `${Math.floor(days / 30)} months` : `${Math.floor(days / 365)} years`;
}

const networks: Record<string, string> = {
	none: "none",
	allowlist: "only chosen destinations",
	host: "everything that the host reaches",
};

export function network(mode: string, rules: readonly string[]): string {
	const text = networks[mode] ?? mode;
	return rules.length === 0 ? text : `${text} (${rules.join(", ")})`;
}

export function bytes(n: number): string {
	if (n < 1024) return `${n} B`;
	const units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
	let v = n / 1024;
	let i = 0;
	while (v >= 1023.95 && i < units.length - 1) {
		v /= 1024;
		i++;
	}
	return `${v.toFixed(1)} ${units[i]}`;
}
