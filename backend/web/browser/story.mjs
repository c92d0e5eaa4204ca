// The whole story in a real browser, from the login to the cleanup, as a person would:
// driven by the Go test, which gives the address and the names by environment.
// YOI_WEB_SHOTS names a directory for screenshots of each page in both themes.
import assert from "node:assert/strict";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const {
	YOI_WEB_URL: url,
	YOI_WEB_PASSWORD: password,
	YOI_WEB_BROWSER: browser = "/usr/bin/chromium",
	YOI_WEB_SHOTS: shots,
} = process.env;
const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const profile = await mkdtemp(join(tmpdir(), "yoi-web-"));
const launch = {
	executablePath: browser,
	args: [
		"--headless",
		"--no-sandbox",
		"--disable-gpu",
		"--disable-quic",
		"--no-first-run",
		"--disable-background-networking",
		"--disable-component-update",
		"--disable-sync",
		"--disable-dev-shm-usage",
	],
};
const context = await chromium.launchPersistentContext(profile, {
	...launch,
	headless: true,
	viewport: { width: 1280, height: 900 },
	bypassCSP: false,
});
context.setDefaultTimeout(30_000);
const problems = [];
const page = context.pages()[0] ?? (await context.newPage());
page.on("console", (m) => {
	// A refused form is a page with a status of 4xx, which Chromium remarks on.
	if (m.type() === "error" && !/Failed to load resource/.test(m.text())) problems.push(`console: ${m.text()}`);
});
page.on("pageerror", (e) => problems.push(`error: ${e}`));
const launched = [];
page.on("request", (r) => {
	if (!r.url().startsWith(url)) problems.push(`a request leaves: ${r.url()}`);
	if (r.method() === "POST" && r.url() === `${url}/w/demo/launch`)
		launched.push(new URLSearchParams(r.postData() ?? ""));
});

// look holds a page to what every page keeps: no violation that axe-core knows of, in
// both themes, no sideways scrolling on a phone.
async function look(name) {
	for (const colorScheme of ["light", "dark"]) {
		await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
		// evaluate is not the page's script: the policy that forbids inline scripts stays.
		await page.evaluate(axe);
		const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
		for (const v of found.violations)
			problems.push(
				`${name} ${colorScheme}: ${v.id}: ${v.help}: ${v.nodes.map((n) => `${n.html.slice(0, 160)} ${n.failureSummary}`).join("; ")}`,
			);
		if (shots) await page.screenshot({ path: join(shots, `${name}-${colorScheme}.png`), fullPage: true });
	}
	await page.setViewportSize({ width: 360, height: 740 });
	const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
	if (over > 0) problems.push(`${name}: ${over} pixels wider than a phone`);
	if (shots) await page.screenshot({ path: join(shots, `${name}-phone.png`), fullPage: true });
	await page.setViewportSize({ width: 1280, height: 900 });
	await page.emulateMedia({ colorScheme: "light", reducedMotion: "reduce" });
}

async function refused(code) {
	await page.locator(".problem .code code", { hasText: code }).first().waitFor();
	const text = await page.locator(".problem").first().textContent();
	assert.match(text, /\n.{10,}/s, "a refusal says what to do");
}

async function story() {
	await page.goto(`${url}/w/demo`);
	await page.waitForURL(/\/login\?next=/);
	await look("login");
	await page.getByLabel("Name").fill("ada");
	await page.getByLabel("Password").fill("wrong password");
	await page.getByRole("button", { name: "Log in" }).click();
	await refused("login_failed");
	// By keyboard alone.
	await page.getByLabel("Password").focus();
	await page.keyboard.type(password);
	await page.keyboard.press("Enter");
	await page.waitForURL(`${url}/w/demo`);
	await page.getByText("There is no Execution Workspace yet").waitFor();
	await look("empty");

	// Refusals are pages that say what to do, and keep what was typed.
	await page.getByRole("link", { name: "Create the first" }).click();
	await page.getByLabel("Selector").fill("branch:nowhere");
	await page.getByRole("button", { name: "Create" }).click();
	await refused("selector_missing");
	await look("refused");
	await page.getByRole("link", { name: "Try again" }).click();
	await page.getByLabel("Repository").selectOption("dirty");
	await page.getByRole("button", { name: "Create" }).click();
	await refused("source_dirty");
	await page.getByRole("link", { name: "Try again" }).click();
	await page.getByLabel("Repository").selectOption("remote");
	await page.getByRole("button", { name: "Create" }).click();
	await refused("remote_source_refused");
	await look("form-refused");

	// Create, with completion from the refs, and watch.
	await page.getByLabel("Repository").selectOption("app");
	const selector = page.getByLabel("Selector");
	await selector.fill("");
	await selector.pressSequentially("topi");
	await page.locator('#refs option[value="branch:topic"]').waitFor({ state: "attached" });
	await selector.fill("branch:main");
	await page.getByText(/^auto takes \w+ here: ./).waitFor();

	// A network of chosen destinations: nothing is chosen until somebody does.
	const rule = page.getByLabel("*.modules.example:443");
	assert.equal(await rule.isVisible(), false);
	await page.getByLabel("only chosen destinations").check();
	await page.getByRole("button", { name: "Create" }).click();
	await refused("network_rules_required");
	await rule.check();
	await look("new");
	await page.getByRole("button", { name: "Create" }).click();
	await page.waitForURL(/\/execution-workspaces\/ws-/);
	const at = page.url();
	await page.getByText("Nothing was committed or changed.").waitFor();
	await page.getByText("only chosen destinations").waitFor();
	await page.locator(".timeline").getByText("Execution Workspace created").waitFor();
	await look("detail");

	// Launch in a subdirectory, picked from the tree.
	await page.getByRole("link", { name: "Launch a Worker", exact: true }).click();
	await page.getByLabel("Command").fill("true");
	await page.getByLabel("Directory").fill("../elsewhere");
	await page.getByRole("button", { name: "Launch", exact: true }).click();
	await refused("relative_cwd_escape");
	assert.equal(await page.getByLabel("Command").inputValue(), "true");
	await page.getByLabel("Directory").fill("");
	await page.locator("[data-tree-picker]").getByRole("button", { name: "src/" }).click();
	assert.equal(await page.getByLabel("Directory").inputValue(), "src");
	await page
		.getByLabel("Command")
		.fill(
			`sh -c 'pwd; printf "\\033[1;32mgreen\\033[0m <b>not bold</b>\\n"; echo "int more(void) { return 2; }" >>util.c; printf "\\000\\001binary" >blob; git add -A; git -c user.name=w -c user.email=w@example.com commit -qm "more"; rm main.c; curl -sS --noproxy , -x http://127.0.0.1:61080 -o /dev/null http://other.test/; n=0; while [ ! -e stop ] && [ $n -lt 600 ]; do echo tick $n; n=$((n+1)); sleep 0.2; done'`,
		);
	await look("launch");
	await page.getByRole("button", { name: "Launch", exact: true }).click();
	await page.waitForURL(/\/workers\/wk-/);

	// The log is live, coloured, and nothing in it is markup.
	const log = page.locator("[data-log]");
	await log.getByText("/workspace/app/src").waitFor();
	await log.locator("span.f2.b, span.b.f2", { hasText: "green" }).waitFor();
	await log.getByText("<b>not bold</b>").waitFor();
	assert.equal(await log.locator("b").count(), 0);
	await log.getByText("tick 9", { exact: true }).waitFor();
	await page.locator(".refusals li", { hasText: "other.test:80 not an allowed destination" }).waitFor();
	await page.locator('[data-line="memory"][points*=" "]').waitFor({ state: "attached" });
	await page.getByLabel("Search the output").fill("tick 3");
	await page.getByText(/^\d+ lines?$/).waitFor();
	await page.keyboard.press("Enter");
	await log.locator(".hit.now").waitFor();
	await look("worker");

	// A server that does not answer is told of, and what is typed meanwhile stays.
	await page.route(page.url(), (r) => r.abort());
	const stale = page.getByText("Not live: the server does not answer");
	await stale.waitFor();
	await page.unroute(page.url());
	await stale.waitFor({ state: "hidden" });
	assert.equal(await page.getByLabel("Search the output").inputValue(), "tick 3");

	// What was sent names an id and a path inside, and no path of the host's.
	const sent = launched.at(-1);
	assert.match(sent.get("allocation_id"), /^ws-[0-9a-z]{16}$/);
	assert.equal(sent.get("relative_cwd"), "src");
	for (const [name, value] of sent) if (name !== "command") assert.doesNotMatch(value, /\//, `${name} holds a path`);

	// What is in use is refused, readably.
	const worker = page.url();
	await page.goto(`${url}/w/demo/launch`);
	await page.getByLabel("Command").fill("true");
	await page.getByRole("button", { name: "Launch", exact: true }).click();
	await refused("allocation_in_use");
	await page.goto(worker);
	await page.getByRole("button", { name: "Stop" }).click();
	await page.locator("[data-live] .s-exited").waitFor();
	await page.getByText("1 commit, ").waitFor();
	await look("worker-ended");

	await page.goto(`${url}/w/demo/workers`);
	await page.getByRole("link", { name: /^sh -c/ }).waitFor();
	await look("workers");

	// The changes: hunks, a binary file, a deleted one.
	await page.goto(`${at}/diff`);
	await page.locator(".hunks .ins", { hasText: "int more(void)" }).waitFor();
	await page.locator(".hunks .del", { hasText: "int main(void)" }).waitFor();
	await page.getByText("A binary file").waitFor();
	await look("diff");
	await page.goto(at);
	await page.locator(".commits").getByText("more").waitFor();
	await page.goto(`${url}/w/demo`);
	await page
		.locator("td", { hasText: /KiB|MiB/ })
		.first()
		.waitFor();
	await look("list");

	// Clean up: what would be lost is named, and has to be agreed to.
	await page.goto(at);
	await page.getByRole("link", { name: "Clean up" }).click();
	await page.getByText("This would be lost:").waitFor();
	await page.locator(".loss").getByText("more").waitFor();
	await look("cleanup");
	await page.getByLabel("It may be lost").check();
	await page.getByRole("button", { name: "Clean up" }).click();
	await page.waitForURL(at);
	await page.locator(".s-removed").first().waitFor();
	await look("removed");
	await page.goto(`${url}/w/demo/audit`);
	await page.getByRole("cell", { name: "clean up" }).waitFor();
	await look("audit");
	await page.goto(`${url}/w/elsewhere`);
	await refused("workspace_unknown");
	await look("unknown");
	await page.getByRole("button", { name: "Log out" }).click();
	await page.waitForURL(`${url}/login`);

	// Without scripts: log in, create, launch, read the log, clean up.
	const plain = await (await chromium.launch(launch)).newContext({ javaScriptEnabled: false });
	const p = await plain.newPage();
	await p.goto(`${url}/w/demo/new`);
	await p.getByLabel("Name").fill("ada");
	await p.getByLabel("Password").fill(password);
	await p.getByRole("button", { name: "Log in" }).click();
	await p.waitForURL(`${url}/w/demo/new`);
	await p.getByRole("button", { name: "Create" }).click();
	await p.waitForURL(/\/execution-workspaces\/ws-/);
	await p.getByRole("link", { name: "Launch a Worker", exact: true }).click();
	await p.getByLabel("Command").fill("git log -1 --format=%s");
	await p.getByRole("button", { name: "Launch", exact: true }).click();
	await p.locator("[data-log]").getByText("third").waitFor();
	await plain.browser()?.close();
}

let failed;
try {
	await story();
} catch (e) {
	failed = e;
	if (shots) await page.screenshot({ path: join(shots, "failed.png"), fullPage: true });
	console.error(
		`at ${page.url()}\n${await page
			.locator("main")
			.textContent()
			.catch(() => "")}`,
	);
}
await context.close();
await rm(profile, { recursive: true, force: true });
for (const p of problems) console.error(p);
if (failed) console.error(failed);
process.exit(failed || problems.length > 0 ? 1 : 0);
