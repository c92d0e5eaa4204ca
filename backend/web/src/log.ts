export interface Span {
	t: string;
	c?: string;
}

export interface LogLines {
	first: number;
	lines: Span[][];
}

// LogBuffer holds the lines that are shown: what has changed is what apply returns.
// Old ones go, so that a Worker that prints for days does not fill the page.
export class LogBuffer {
	#lines: Span[][] = [];
	#first = 0;

	constructor(readonly most: number) {}

	// apply takes lines in and says which index to draw from, and how many of the
	// drawn ones to take away at the front.
	apply(part: LogLines): { from: number; drop: number } {
		const at = Math.max(part.first - this.#first, 0);
		this.#lines.length = Math.min(this.#lines.length, at);
		this.#lines.push(...part.lines);
		const drop = Math.max(this.#lines.length - this.most, 0);
		this.#lines.splice(0, drop);
		this.#first += drop;
		return { from: Math.max(at - drop, 0), drop };
	}

	get lines(): readonly Span[][] {
		return this.#lines;
	}

	// find returns the indexes of the lines that hold a text, upper and lower case
	// alike.
	find(text: string): number[] {
		const want = text.toLowerCase();
		if (want === "") return [];
		const out: number[] = [];
		this.#lines.forEach((line, i) => {
			if (
				line
					.map((s) => s.t)
					.join("")
					.toLowerCase()
					.includes(want)
			)
				out.push(i);
		});
		return out;
	}
}

// safeClass lets only the style sheet's own names for colours through.
export function safeClass(c: string | undefined): string {
	return (c ?? "")
		.split(" ")
		.filter((n) => /^([bdiur]|[fg]([0-9]|1[0-5]))$/.test(n))
		.join(" ");
}
