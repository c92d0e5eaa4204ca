package backend

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/backend"
	"yoi.dev/yoi-runtime/policy"
)

// TestLaunchFormSelectsAnExecutionWorkspaceByID: the page offers what there is, by ids,
// and what it sends holds no path of the host.
func TestLaunchFormSelectsAnExecutionWorkspaceByID(t *testing.T) {
	w := start(t, "")
	w.b.Run(t, "correct horse\n", "user", "add", "ada", "--role", "demo=operator")
	op, ada := w.as(t, "demo", "operator"), w.login(t, "ada", "correct horse")
	one, two := op.create(t, nil), op.create(t, func(r *backend.CreateRequest) { r.Selector = "tag:v1" })
	page := string(want(t, ada.get(t, "/w/demo/launch?allocation_id="+one.ID), 200).Body)
	var offered []string
	for _, m := range regexp.MustCompile(`<option value="(ws-[^"]*)"`).FindAllStringSubmatch(page, -1) {
		offered = append(offered, m[1])
	}
	if !slices.Equal(offered, []string{two.ID, one.ID}) || !strings.Contains(page, `<option value="`+one.ID+`" selected>`) {
		t.Errorf("%v are offered, %s was asked for", offered, one.ID)
	}
	form := page[strings.Index(page, `action="/w/demo/launch"`):]
	var fields []string
	for _, m := range regexp.MustCompile(` name="([^"]*)"`).FindAllStringSubmatch(form, -1) {
		fields = append(fields, m[1])
	}
	slices.Sort(fields)
	if want := []string{"allocation_id", "command", "cpu_percent", "csrf", "env", "memory", "relative_cwd", "tasks", "wall_clock"}; !slices.Equal(fields, want) {
		t.Errorf("the form has the fields %q, want %q", fields, want)
	}
	at := want(t, ada.post(t, "/w/demo/launch", "allocation_id", one.ID, "relative_cwd", "src", "command", "pwd"), 303).Header.Get("Location")
	v := op.wait(t, at[strings.LastIndexByte(at, '/')+1:])
	if v.AllocationID != one.ID || v.RelativeCwd != "src" || v.StartedBy != "ada" {
		t.Errorf("launched %+v", v)
	}
	if p := want(t, ada.post(t, "/w/demo/launch", "allocation_id", one.ID, "cwd", "/etc", "command", "pwd"), 400); !strings.Contains(string(p.Body), "bad_request") {
		t.Errorf("a field that is none: %s", p.Body)
	}
}

// TestWorkerIsHeldInItsExecutionWorkspace: its workspace, cwd and scope are the
// materialized tree; neither the source nor the Runtime root exists for it.
func TestWorkerIsHeldInItsExecutionWorkspace(t *testing.T) {
	w := start(t, "")
	op := w.as(t, "demo", "operator")
	ws := op.create(t, func(r *backend.CreateRequest) { r.Scope = []string{"src"} })
	readme, err := os.ReadFile(filepath.Join(w.repo.Dir, "src/main.c"))
	if err != nil {
		t.Fatal(err)
	}
	// The command is shown, and may not hold a path itself.
	hidden := base64.StdEncoding.EncodeToString([]byte(w.repo.Dir + " " + w.d.Root))
	wk := op.spawn(t, ws.ID, `pwd; git rev-parse --show-toplevel; git sparse-checkout list; ls; ls -d $(echo `+hidden+` | base64 -d) 2>/dev/null
echo more >>src/main.c; git commit -qam work; git push -q origin HEAD:stolen 2>/dev/null || echo not pushed`)
	if v := op.wait(t, wk.ID); v.Outcome == nil || v.Outcome.ExitCode != 0 {
		t.Errorf("ended as %+v", v.Outcome)
	}
	// Files at the top come with every cone.
	log := string(op.do(t, "GET", demo+"/workers/"+wk.ID+"/logs", nil).Body)
	if want := "/workspace/app\n/workspace/app\nsrc\nMakefile\nREADME.md\nlink\nrun.sh\nsrc\nnot pushed\n"; log != want {
		t.Errorf("the log is %q, want %q", log, want)
	}
	if now, err := os.ReadFile(filepath.Join(w.repo.Dir, "src/main.c")); err != nil || string(now) != string(readme) {
		t.Errorf("the source has changed: %q, %v", now, err)
	}
}

// TestCleanupIsByPolicyOrOnRequest: what docs/backend.md says under Cleanup.
func TestCleanupIsByPolicyOrOnRequest(t *testing.T) {
	w := start(t, "")
	op := w.as(t, "demo", "operator")
	after := func(policy, script string) backend.ExecutionWorkspace {
		t.Helper()
		ws := op.create(t, func(r *backend.CreateRequest) { r.Cleanup = policy })
		op.wait(t, op.spawn(t, ws.ID, script).ID)
		// The Worker's end is told before its Execution Workspace's policy has been applied.
		for {
			v := ok[backend.ExecutionWorkspace](t, op.do(t, "GET", ews+"/"+ws.ID, nil), 200)
			if v.Status != "active" || policy == "keep_until_asked" {
				if v.Status != "cleanup_pending" && (v.Status != "stopped" || policy == "keep_for:1h" || len(v.Notices) > 0) || t.Context().Err() != nil {
					return v
				}
			}
		}
	}
	if v := after("keep_until_asked", "true"); v.Status != "active" {
		t.Errorf("keep_until_asked: %+v", v)
	}
	if v := after("keep_for:1h", "true"); v.Status != "stopped" {
		t.Errorf("keep_for: %+v", v)
	}
	if v := after("remove_on_stop", "true"); v.Status != "removed" || v.RemovedAt.IsZero() {
		t.Errorf("remove_on_stop: %+v", v)
	}
	kept := after("remove_on_stop", "echo x >new")
	if kept.Status != "stopped" || kept.Notices[0].Code != string(policy.CodeUncollectedWork) {
		t.Errorf("remove_on_stop with work: %+v", kept)
	}
	// By hand: refused with what would be lost, done when that is agreed to, and once.
	lost := ok[backend.Work](t, op.do(t, "GET", ews+"/"+kept.ID+"/work", nil), 200)
	if lost.Clean() || len(lost.Files) != 1 || lost.Files[0].Path != "new" || lost.Files[0].Status != "??" {
		t.Errorf("would be lost: %+v", lost)
	}
	refused(t, op.do(t, "POST", ews+"/"+kept.ID+"/cleanup", nil), policy.CodeUncollectedWork)
	for range 2 {
		if v := ok[backend.ExecutionWorkspace](t, op.do(t, "POST", ews+"/"+kept.ID+"/cleanup", backend.CleanUpRequest{Discard: true}), 200); v.Status != "removed" {
			t.Errorf("cleaned up: %+v", v)
		}
	}
	refused(t, op.do(t, "GET", ews+"/"+kept.ID+"/diff", nil), policy.CodeAllocationNotActive)
	if v := ok[backend.ExecutionWorkspace](t, op.do(t, "GET", ews+"/"+kept.ID, nil), 200); v.Status != "removed" {
		t.Errorf("what was removed is %+v", v)
	}
}

// TestRemoteSourcesNeedTheWorkspacesConsent: the same source, with and without.
func TestRemoteSourcesNeedTheWorkspacesConsent(t *testing.T) {
	w := start(t, "")
	req := backend.CreateRequest{RepositoryID: "far", Selector: "branch:main"}
	narrow, wide := w.as(t, "demo", "operator"), w.as(t, "wide", "operator")
	refused(t, narrow.do(t, "POST", ews, req), backend.CodeRemoteSource)
	refused(t, narrow.do(t, "GET", "/api/w/demo/repositories/far/refs", nil), backend.CodeRemoteSource)
	v := ok[backend.ExecutionWorkspace](t, wide.do(t, "POST", "/api/w/wide/execution-workspaces", req), 201)
	if v.Points[0].CommitID != w.repo.Commit || v.Points[0].RepositoryID != "far" {
		t.Errorf("%+v", v)
	}
}

// TestCreationTellsItsStepsAndHowFarItIs.
func TestCreationTellsItsStepsAndHowFarItIs(t *testing.T) {
	w := start(t, "")
	op := w.as(t, "demo", "operator")
	c := ok[backend.Creation](t, op.do(t, "POST", ews, backend.CreateRequest{RepositoryID: "app"}, "Prefer", "respond-async"), 202)
	percent, steps := -1, 0
	var last backend.Creation
	for _, e := range events(t, op.do(t, "GET", demo+"/creations/"+c.ID+"/events", nil, "Accept", "text/event-stream")) {
		if e.kind != "progress" {
			continue
		}
		if err := json.Unmarshal([]byte(e.data), &last); err != nil {
			t.Fatal(err)
		}
		if last.Percent < percent || len(last.Steps) < steps || last.Percent > 100 {
			t.Errorf("%d %% with %d steps comes after %d %% with %d", last.Percent, len(last.Steps), percent, steps)
		}
		percent, steps = last.Percent, len(last.Steps)
	}
	if last.State != "done" || last.Percent != 100 || last.AllocationID == "" || steps == 0 || last.Steps[0].Name != "register" {
		t.Errorf("it ended as %+v", last)
	}
	// A failed one tells why, in the same words as a request that waits.
	c = ok[backend.Creation](t, op.do(t, "POST", ews, backend.CreateRequest{RepositoryID: "app", Selector: "branch:nope"}, "Prefer", "respond-async"), 202)
	op.do(t, "GET", demo+"/creations/"+c.ID+"/events", nil, "Accept", "text/event-stream")
	if c = ok[backend.Creation](t, op.do(t, "GET", demo+"/creations/"+c.ID, nil), 200); c.State != "failed" || c.Problem == nil || c.Problem.Code != policy.CodeSelectorMissing || c.Problem.Hint == "" {
		t.Errorf("a failed one: %+v", c)
	}
}

// sent is one server-sent event.
type sent struct{ id, kind, data string }

// events takes a stream that has ended apart.
func events(t *testing.T, a answer) (out []sent) {
	t.Helper()
	if got := a.Header.Get("Content-Type"); a.Status != http.StatusOK || got != "text/event-stream" {
		t.Fatalf("no events, but %d %s: %s", a.Status, got, a.Body)
	}
	var e sent
	lines := bufio.NewScanner(strings.NewReader(string(a.Body)))
	lines.Buffer(nil, 8<<20)
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch {
		case lines.Text() == "" && e.kind != "":
			out, e = append(out, e), sent{}
		case field == "id":
			e.id = value
		case field == "event":
			e.kind = value
		case field == "data":
			e.data = value
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if len(out) == 0 || out[len(out)-1].kind != "end" {
		t.Fatalf("the stream does not say that it ended: %+v", out)
	}
	return out
}

// TestTimelineHasTheSafeEventsOfOneExecutionWorkspace, in order, and goes on where a
// browser lost it.
func TestTimelineHasTheSafeEventsOfOneExecutionWorkspace(t *testing.T) {
	w := start(t, "")
	op := w.as(t, "demo", "operator")
	op.wait(t, op.spawn(t, op.create(t, nil).ID, "true").ID) // another's, which is not shown
	ws := op.create(t, nil)
	wk := op.spawn(t, ws.ID, "exit 3")
	op.wait(t, wk.ID)
	ok[backend.ExecutionWorkspace](t, op.do(t, "POST", ews+"/"+ws.ID+"/cleanup", nil), 200)
	list := ok[struct{ Items []backend.Event }](t, op.do(t, "GET", ews+"/"+ws.ID+"/events", nil), 200)
	var told []string
	for _, e := range list.Items {
		told = append(told, e.Kind+" "+e.About+" "+e.Fields["strategy"]+e.Fields["status"])
	}
	if want := []string{
		"workspace.created " + ws.ID + " " + ws.Strategy, "worker.started " + wk.ID + " ", "worker.ended " + wk.ID + " exited", "workspace.removed " + ws.ID + " ",
	}; !slices.Equal(told, want) {
		t.Errorf("the timeline is %q, want %q", told, want)
	}
	stream := events(t, op.do(t, "GET", ews+"/"+ws.ID+"/events?follow=false", nil, "Accept", "text/event-stream"))
	if len(stream) != len(list.Items)+1 {
		t.Fatalf("streamed: %+v", stream)
	}
	rest := events(t, op.do(t, "GET", ews+"/"+ws.ID+"/events?follow=false", nil, "Accept", "text/event-stream", "Last-Event-ID", stream[1].id))
	if !slices.Equal(rest, stream[2:]) {
		t.Errorf("behind %s comes %+v", stream[1].id, rest)
	}
}

// TestDiffHasHunksBinaryAndLargeFiles.
func TestDiffHasHunksBinaryAndLargeFiles(t *testing.T) {
	w := start(t, "")
	op := w.as(t, "demo", "operator")
	ws := op.create(t, nil)
	op.wait(t, op.spawn(t, ws.ID, `echo changed >>README.md; rm src/util.c; printf '\000\001' >blob; seq 10000 >many; git mv src/main.c moved.c
git add -A; git commit -qm work; echo later >>moved.c; chmod +x README.md`).ID)
	d := ok[backend.Diff](t, op.do(t, "GET", ews+"/"+ws.ID+"/diff", nil), 200)
	files := map[string]backend.DiffFile{}
	for _, f := range d.Files {
		files[f.Path] = f
	}
	if d.FileCount != 5 || len(files) != 5 || d.TooLarge || d.Partial {
		t.Errorf("%d files, %+v", d.FileCount, files)
	}
	if f := files["README.md"]; f.Status != "modified" || f.NewMode != "100755" || len(f.Hunks) != 1 || f.Hunks[0].Lines[len(f.Hunks[0].Lines)-1].Text != "changed" {
		t.Errorf("README.md: %+v", f)
	}
	if f := files["src/util.c"]; f.Status != "deleted" || len(f.Hunks) == 0 || f.Hunks[0].Lines[0].Kind != "-" {
		t.Errorf("src/util.c: %+v", f)
	}
	if f := files["blob"]; !f.Binary || f.Hunks != nil {
		t.Errorf("blob: %+v", f)
	}
	if f := files["many"]; f.Additions != 10000 || f.CutLines != 8000 {
		t.Errorf("many: %d lines, %d not shown", f.Additions, f.CutLines)
	}
	if f := files["moved.c"]; f.OldPath != "src/main.c" || f.Status != "renamed" {
		t.Errorf("moved.c: %+v", f)
	}
}

// TestLimitsAreBoundedAndHeld: by the workspace's greatest, and by the sandbox.
func TestLimitsAreBoundedAndHeld(t *testing.T) {
	w := start(t, `max_memory = "4G"`+"\nmax_cpu_percent = 200")
	op := w.as(t, "demo", "operator")
	ws := op.create(t, nil)
	spawn := func(l backend.LimitsRequest, command ...string) answer {
		return op.do(t, "POST", demo+"/workers", backend.SpawnRequest{AllocationID: ws.ID, Command: command, Limits: l})
	}
	for limit, l := range map[string]backend.LimitsRequest{"wall_clock": {WallClock: "11m"}, "memory": {Memory: "5G"}, "cpu_percent": {CPUPercent: 201}} {
		if p := refused(t, spawn(l, "true"), backend.CodeLimitsNotAllowed); p.Fields["limit"] != limit {
			t.Errorf("%s: %v", limit, p.Fields)
		}
	}
	for _, l := range []backend.LimitsRequest{{WallClock: "soon"}, {WallClock: "-1s"}, {Memory: "much"}, {Memory: "1"}} {
		refused(t, spawn(l, "true"), policy.CodeLimitsInvalid)
	}
	v := op.wait(t, ok[backend.Worker](t, spawn(backend.LimitsRequest{WallClock: "200ms"}, "sleep", "60"), 201).ID)
	if v.Outcome == nil || !v.Outcome.TimedOut {
		t.Errorf("ended as %+v", v.Outcome)
	}
}
