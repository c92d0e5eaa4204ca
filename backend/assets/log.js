export class LogBuffer {
    most;
    #lines = [];
    #first = 0;
    constructor(most) {
        this.most = most;
    }
    apply(part) {
        const at = Math.max(part.first - this.#first, 0);
        this.#lines.length = Math.min(this.#lines.length, at);
        this.#lines.push(...part.lines);
        const drop = Math.max(this.#lines.length - this.most, 0);
        this.#lines.splice(0, drop);
        this.#first += drop;
        return { from: Math.max(at - drop, 0), drop };
    }
    get lines() {
        return this.#lines;
    }
    find(text) {
        const want = text.toLowerCase();
        if (want === "")
            return [];
        const out = [];
        this.#lines.forEach((line, i) => {
            if (line
                .map((s) => s.t)
                .join("")
                .toLowerCase()
                .includes(want))
                out.push(i);
        });
        return out;
    }
}
export function safeClass(c) {
    return (c ?? "")
        .split(" ")
        .filter((n) => /^([bdiur]|[fg]([0-9]|1[0-5]))$/.test(n))
        .join(" ");
}
