export interface Sample {
	at: string;
	cpu_percent: number;
	memory_bytes: number;
}

const width = 600;
const height = 90;

// points is a chart's line, as the server draws it (backend/format.go).
export function points(samples: readonly Sample[], of: "cpu" | "memory"): string {
	const value = (s: Sample): number => (of === "cpu" ? s.cpu_percent : s.memory_bytes);
	const first = samples[0];
	const last = samples.at(-1);
	const most = Math.max(of === "cpu" ? 100 : 0, ...samples.map(value));
	if (first === undefined || last === undefined || samples.length < 2 || most === 0) return "";
	const start = Date.parse(first.at);
	const whole = Math.max(Date.parse(last.at) - start, 1000);
	return samples
		.map((s) => {
			const x = ((Date.parse(s.at) - start) / whole) * width;
			const y = height - 4 - (value(s) / most) * (height - 8);
			return `${x.toFixed(1)},${y.toFixed(1)}`;
		})
		.join(" ");
}
