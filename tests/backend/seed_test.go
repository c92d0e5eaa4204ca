package backend

import (
	"encoding/json"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/backend"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// TestExecutionWorkspaceIsCreatedFromConfiguredRepositoryAndSelector: POST
// /api/w/<workspace-id>/execution-workspaces.
func TestExecutionWorkspaceIsCreatedFromConfiguredRepositoryAndSelector(t *testing.T) {
	w := start(t, "")
	op := w.as(t, "demo", "operator")
	for selector, commit := range map[string]string{
		"": w.repo.Commit, "branch:topic": w.made.Git(t, "rev-parse", "topic"), "tag:v1": w.made.Git(t, "rev-parse", "v1^{commit}"),
		"HEAD~2": w.made.Git(t, "rev-parse", "HEAD~2"), "commit:" + w.repo.Commit[:9]: w.repo.Commit,
	} {
		a := op.do(t, "POST", ews, backend.CreateRequest{RepositoryID: "app", Selector: selector, Strategy: "copy"})
		v := ok[backend.ExecutionWorkspace](t, a, 201)
		if v.Points[0].CommitID != commit || v.Points[0].RepositoryID != "app" || v.Strategy != "copy" || v.Status != "active" || v.WorkspaceID != "demo" {
			t.Errorf("%q: %+v", selector, v)
		}
		if v.CreatedBy != "token:operator" || v.Cleanup != "keep_until_asked" || v.DirtyState != "clean_point_only" {
			t.Errorf("%q: %+v", selector, v)
		}
		if at := a.Header.Get("Location"); at != ews+"/"+v.ID {
			t.Errorf("Location is %q", at)
		}
		// The Runtime knows it, and has no other.
		rt, err := w.d.Client.GetWorkspace(t.Context(), policy.AllocationID(v.ID))
		if err != nil || rt.WorkspaceID != "demo" || rt.Points[0].CommitID != commit {
			t.Errorf("%q: the Runtime has %+v, %v", selector, rt, err)
		}
	}
	scoped := op.create(t, func(r *backend.CreateRequest) { r.Scope = []string{"src/"}; r.Cleanup = "keep_for:1h" })
	if got := scoped.Points[0].Scope; len(got) != 1 || got[0] != "src" || scoped.Cleanup != "keep_for:1h0m0s" {
		t.Errorf("%+v", scoped)
	}
}

// TestExecutionWorkspacesAreListedAsSafeSummaries: GET
// /api/w/<workspace-id>/execution-workspaces, with pages and filters.
func TestExecutionWorkspacesAreListedAsSafeSummaries(t *testing.T) {
	w := start(t, "")
	op, look := w.as(t, "demo", "operator"), w.as(t, "demo", "viewer")
	var made []string
	for range 3 {
		made = append(made, op.create(t, nil).ID)
	}
	ok[backend.ExecutionWorkspace](t, op.do(t, "POST", ews+"/"+made[0]+"/cleanup", nil), 200)
	first := ok[backend.ExecutionWorkspaceList](t, look.do(t, "GET", ews+"?limit=2", nil), 200)
	rest := ok[backend.ExecutionWorkspaceList](t, look.do(t, "GET", ews+"?limit=2&after="+first.Next, nil), 200)
	var ids []string
	for _, v := range append(first.Items, rest.Items...) {
		ids = append(ids, v.ID)
	}
	if want := made[2] + made[1] + made[0]; strings.Join(ids, "") != want || first.Next == "" || rest.Next != "" {
		t.Errorf("pages have %v, want the reverse of %v", ids, made)
	}
	removed := ok[backend.ExecutionWorkspaceList](t, look.do(t, "GET", ews+"?status=removed&repository_id=app", nil), 200)
	if len(removed.Items) != 1 || removed.Items[0].ID != made[0] || removed.Items[0].RemovedAt.IsZero() {
		t.Errorf("removed: %+v", removed)
	}
	one := ok[backend.ExecutionWorkspace](t, look.do(t, "GET", ews+"/"+made[1], nil), 200)
	if one.ID != made[1] || one.Points[0].Subject != "third" || len(one.Roots) != 1 || one.Roots[0] != "/workspace/app" {
		t.Errorf("detail: %+v", one)
	}
	// Another workspace sees none of it.
	other := w.as(t, "other", "admin")
	if got := ok[backend.ExecutionWorkspaceList](t, other.do(t, "GET", "/api/w/other/execution-workspaces", nil), 200); len(got.Items) != 0 {
		t.Errorf("other sees %+v", got)
	}
	refused(t, other.do(t, "GET", "/api/w/other/execution-workspaces/"+made[1], nil), policy.CodeAllocationUnknown)
	refused(t, other.do(t, "GET", ews, nil), backend.CodeWorkspaceUnknown)
}

// TestWorkerIsSpawnedByAllocationIDAndRelativeCwd: the spawn names a safe id, and
// the Worker's cwd, workspace and scope are the Execution Workspace's.
func TestWorkerIsSpawnedByAllocationIDAndRelativeCwd(t *testing.T) {
	w := start(t, "")
	op := w.as(t, "demo", "operator")
	ws := op.create(t, nil)
	req := backend.SpawnRequest{AllocationID: ws.ID, RelativeCwd: "src", Command: []string{"sh", "-c", "pwd; git rev-parse HEAD; ls; echo $MODE; ulimit -n"}, Env: map[string]string{"MODE": "canary-env-value"}}
	got := ok[backend.Worker](t, op.do(t, "POST", demo+"/workers", req), 201)
	if got.AllocationID != ws.ID || got.RelativeCwd != "src" || got.ExecutionWorkspace == nil || got.ExecutionWorkspace.ID != ws.ID || got.StartedBy != "token:operator" {
		t.Errorf("spawned %+v", got)
	}
	end := op.wait(t, got.ID)
	if end.Status != "exited" || end.Outcome == nil || end.Outcome.ExitCode != 0 {
		t.Errorf("ended as %+v", end)
	}
	log := op.do(t, "GET", demo+"/workers/"+got.ID+"/logs", nil)
	if want := "/workspace/app/src\n" + w.repo.Commit + "\nmain.c\nutil.c\ncanary-env-value\n"; !strings.HasPrefix(string(log.Body), want) {
		t.Errorf("the log is %q, want %q", log.Body, want)
	}
	if log.Header.Get("Content-Type") != "application/octet-stream" || !strings.HasPrefix(log.Header.Get("Content-Disposition"), "attachment") {
		t.Errorf("a Worker's bytes come as %v", log.Header)
	}
	// The Runtime was asked for a pre-allocated workspace, and knows whose Worker it is.
	rt, err := w.d.Client.GetWorker(t.Context(), policy.WorkerID(got.ID))
	if err != nil || string(rt.AllocationID) != ws.ID || rt.WorkspaceID != "demo" || rt.RelativeCwd != "src" {
		t.Errorf("the Runtime has %+v, %v", rt, err)
	}
	// A spawn without an allocation makes none.
	before, err := w.d.Client.ListWorkspaces(t.Context(), runtime.ListFilter{})
	if err != nil {
		t.Fatal(err)
	}
	refused(t, op.do(t, "POST", demo+"/workers", map[string]any{"command": []string{"true"}}), backend.CodeAllocationRequired)
	for _, field := range []string{"repository_id", "selector", "execution_workspace", "root", "cwd"} {
		refused(t, op.do(t, "POST", demo+"/workers", map[string]any{"allocation_id": ws.ID, "command": []string{"true"}, field: "x"}), policy.CodeBadRequest)
	}
	after, err := w.d.Client.ListWorkspaces(t.Context(), runtime.ListFilter{})
	if err != nil || len(after.Items) != len(before.Items) {
		t.Errorf("%d workspaces became %d, %v", len(before.Items), len(after.Items), err)
	}
}

// TestWorkerListAndDetailShowTheSafeSummary of what they run in.
func TestWorkerListAndDetailShowTheSafeSummary(t *testing.T) {
	w := start(t, "")
	op := w.as(t, "demo", "operator")
	ws := op.create(t, nil)
	wk := op.spawn(t, ws.ID, "echo hi >new && git add new && git commit -qm work && exit 3")
	op.wait(t, wk.ID)
	list := ok[backend.WorkerList](t, op.do(t, "GET", demo+"/workers?allocation_id="+ws.ID, nil), 200)
	detail := ok[backend.Worker](t, op.do(t, "GET", demo+"/workers/"+wk.ID, nil), 200)
	if len(list.Items) != 1 {
		t.Fatalf("list: %+v", list)
	}
	for _, v := range []backend.Worker{list.Items[0], detail} {
		if v.ID != wk.ID || v.ExecutionWorkspace == nil || v.ExecutionWorkspace.Points[0].CommitID != w.repo.Commit || v.Outcome == nil || v.Outcome.ExitCode != 3 {
			t.Errorf("%+v", v)
		}
	}
	if detail.Outcome.Commits != 1 || detail.Outcome.ChangedPaths != 1 || detail.Outcome.WallTime <= 0 {
		t.Errorf("outcome %+v", detail.Outcome)
	}
	refused(t, w.as(t, "other", "admin").do(t, "GET", "/api/w/other/workers/"+wk.ID, nil), policy.CodeWorkerUnknown)
}

// TestRefusalsAreTyped: everything that can be wrong with what is asked for has its
// own code, and changes nothing.
func TestRefusalsAreTyped(t *testing.T) {
	w := start(t, "max_execution_workspaces = 3")
	op := w.as(t, "demo", "operator")
	ws := op.create(t, nil)
	setup := op.spawn(t, ws.ID, "ln -s / out && ln -s src in && ln -s nowhere dangling && echo x >file")
	op.wait(t, setup.ID)

	create := func(f func(*backend.CreateRequest)) answer {
		r := backend.CreateRequest{RepositoryID: "app"}
		f(&r)
		return op.do(t, "POST", ews, r)
	}
	for name, tc := range map[string]struct {
		change func(*backend.CreateRequest)
		code   policy.Code
	}{
		"unknown repository": {func(r *backend.CreateRequest) { r.RepositoryID = "nope" }, policy.CodeRepositoryUnknown},
		"a path":             {func(r *backend.CreateRequest) { r.RepositoryID = w.repo.Dir }, policy.CodeRepositoryUnknown},
		"no repository":      {func(r *backend.CreateRequest) { r.RepositoryID = "" }, policy.CodeRepositoryUnknown},
		"dirty source":       {func(r *backend.CreateRequest) { r.RepositoryID = "dirty" }, policy.CodeSourceDirty},
		"remote source":      {func(r *backend.CreateRequest) { r.RepositoryID = "remote" }, backend.CodeRemoteSource},
		"missing source":     {func(r *backend.CreateRequest) { r.RepositoryID = "missing" }, policy.CodeSourceUnreadable},
		"empty source":       {func(r *backend.CreateRequest) { r.RepositoryID = "empty"; r.Selector = "HEAD" }, policy.CodeRepositoryEmpty},
		"unknown selector":   {func(r *backend.CreateRequest) { r.Selector = "branch:nope" }, policy.CodeSelectorMissing},
		"malformed selector": {func(r *backend.CreateRequest) { r.Selector = "--upload-pack=x" }, policy.CodeSelectorInvalid},
		"not a commit":       {func(r *backend.CreateRequest) { r.Selector = "HEAD^{tree}" }, policy.CodeSelectorNotCommit},
		"store snapshot":     {func(r *backend.CreateRequest) { r.Selector = "snapshot:sha256:" + strings.Repeat("0", 64) }, policy.CodeSelectorInvalid},
		"strategy":           {func(r *backend.CreateRequest) { r.Strategy = "direct_legacy_mount" }, backend.CodeStrategyNotAllowed},
		"dirty policy":       {func(r *backend.CreateRequest) { r.DirtyState = "current_worktree_snapshot" }, backend.CodeDirtyNotAllowed},
		"cleanup policy":     {func(r *backend.CreateRequest) { r.Cleanup = "keep_for:99h" }, backend.CodeCleanupNotAllowed},
		"network":            {func(r *backend.CreateRequest) { r.Network = "host" }, backend.CodeNetworkNotAllowed},
		"scope":              {func(r *backend.CreateRequest) { r.Scope = []string{"../x"} }, policy.CodeScopeInvalid},
		"empty scope":        {func(r *backend.CreateRequest) { r.Scope = []string{"nope"} }, policy.CodeScopeEmpty},
	} {
		t.Run(name, func(t *testing.T) { refused(t, create(tc.change), tc.code) })
	}
	if got := ok[backend.ExecutionWorkspaceList](t, op.do(t, "GET", ews, nil), 200); len(got.Items) != 1 {
		t.Errorf("refused creations left %d workspaces", len(got.Items))
	}

	spawn := func(id, cwd string) answer {
		return op.do(t, "POST", demo+"/workers", backend.SpawnRequest{AllocationID: id, RelativeCwd: cwd, Command: []string{"true"}})
	}
	for name, tc := range map[string]struct {
		cwd  string
		code policy.Code
	}{
		"absolute":       {"/workspace/app", policy.CodeCwdAbsolute},
		"escape":         {"src/../../..", policy.CodeCwdEscape},
		"symlink escape": {"out", policy.CodeCwdSymlinkEscape},
		"behind it":      {"out/etc", policy.CodeCwdSymlinkEscape},
		"missing":        {"nope", policy.CodeCwdMissing},
		"dangling link":  {"dangling", policy.CodeCwdMissing},
		"a file":         {"file", policy.CodeCwdNotDirectory},
		"NUL":            {"a\x00b", policy.CodeCwdMissing},
	} {
		t.Run("relative_cwd "+name, func(t *testing.T) {
			refused(t, spawn(ws.ID, tc.cwd), tc.code)
			path := "?path=" + strings.ReplaceAll(strings.ReplaceAll(tc.cwd, "\x00", "%00"), "/", "%2F")
			refused(t, op.do(t, "GET", ews+"/"+ws.ID+"/directories"+path, nil), tc.code)
		})
	}
	dirs := ok[backend.DirectoryList](t, op.do(t, "GET", ews+"/"+ws.ID+"/directories", nil), 200)
	if len(dirs.Names) != 1 || dirs.Names[0] != "src" || dirs.Path != "." {
		t.Errorf("directories: %+v", dirs)
	}

	foreign := w.as(t, "other", "operator")
	theirs := ok[backend.ExecutionWorkspace](t, foreign.do(t, "POST", "/api/w/other/execution-workspaces", backend.CreateRequest{RepositoryID: "app"}), 201)
	unknown, another := refused(t, spawn("ws-0000000000000000", ""), policy.CodeAllocationUnknown), refused(t, spawn(theirs.ID, ""), policy.CodeAllocationUnknown)
	if strings.ReplaceAll(unknown.Detail, "ws-0000000000000000", "X") != strings.ReplaceAll(another.Detail, theirs.ID, "X") {
		t.Errorf("another workspace's allocation is told from one that never was: %q, %q", unknown.Detail, another.Detail)
	}
	busy := op.spawn(t, ws.ID, "sleep 60")
	if p := refused(t, spawn(ws.ID, ""), policy.CodeAllocationInUse); p.Fields["worker"] != busy.ID {
		t.Errorf("in use by %v", p.Fields)
	}
	refused(t, op.do(t, "POST", ews+"/"+ws.ID+"/cleanup", nil), policy.CodeAllocationInUse)
	stopped := ok[backend.Worker](t, op.do(t, "POST", demo+"/workers/"+busy.ID+"/stop", backend.StopRequest{Grace: "0s"}), 200)
	if stopped.Live() {
		t.Errorf("stopped: %+v", stopped)
	}
	refused(t, op.do(t, "POST", ews+"/"+ws.ID+"/cleanup", nil), policy.CodeUncollectedWork)
	ok[backend.ExecutionWorkspace](t, op.do(t, "POST", ews+"/"+ws.ID+"/cleanup", backend.CleanUpRequest{Discard: true}), 200)
	refused(t, spawn(ws.ID, ""), policy.CodeAllocationNotActive)

	for range 3 {
		op.create(t, nil)
	}
	refused(t, create(func(*backend.CreateRequest) {}), backend.CodeWorkspaceQuota)

	away := w.as(t, "away", "operator")
	refused(t, away.do(t, "GET", "/api/w/away/execution-workspaces", nil), backend.CodeRuntimeUnreachable)
	refused(t, away.do(t, "POST", "/api/w/away/execution-workspaces", backend.CreateRequest{RepositoryID: "app"}), backend.CodeRuntimeUnreachable)

	look := w.as(t, "demo", "viewer")
	for _, path := range []string{ews, demo + "/workers", ews + "/" + ws.ID + "/cleanup", demo + "/workers/" + busy.ID + "/stop"} {
		refused(t, look.do(t, "POST", path, map[string]string{}), backend.CodeForbidden)
	}
	refused(t, (&client{w, ""}).do(t, "GET", ews, nil), backend.CodeAuthenticationRequired)
	refused(t, (&client{w, "yoi_wrong"}).do(t, "GET", ews, nil), backend.CodeAuthenticationRequired)
}

// TestIdempotencyKeys: a repeated request acts once.
func TestIdempotencyKeys(t *testing.T) {
	w := start(t, "")
	op := w.as(t, "demo", "operator")
	req := backend.CreateRequest{RepositoryID: "app"}
	first := ok[backend.ExecutionWorkspace](t, op.do(t, "POST", ews, req, "Idempotency-Key", "k1"), 201)
	again := op.do(t, "POST", ews, req, "Idempotency-Key", "k1")
	if v := ok[backend.ExecutionWorkspace](t, again, 201); v.ID != first.ID || again.Header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("again: %+v, %v", v, again.Header)
	}
	req.Selector = "tag:v1"
	refused(t, op.do(t, "POST", ews, req, "Idempotency-Key", "k1"), backend.CodeIdempotencyConflict)
	if v := w.as(t, "demo", "admin").do(t, "POST", ews, req, "Idempotency-Key", "k1"); v.Status != 201 {
		t.Errorf("another's key of the same name: %s", v.Body)
	}
	spawn := backend.SpawnRequest{AllocationID: first.ID, Command: []string{"true"}}
	one := ok[backend.Worker](t, op.do(t, "POST", demo+"/workers", spawn, "Idempotency-Key", "s1"), 201)
	op.wait(t, one.ID)
	if two := ok[backend.Worker](t, op.do(t, "POST", demo+"/workers", spawn, "Idempotency-Key", "s1"), 201); two.ID != one.ID {
		t.Errorf("%s was launched, then %s", one.ID, two.ID)
	}
	for _, key := range []string{strings.Repeat("k", 129), "a b"} {
		refused(t, op.do(t, "POST", ews, req, "Idempotency-Key", key), policy.CodeBadRequest)
	}
	var n struct{ Items []json.RawMessage }
	if n = ok[struct{ Items []json.RawMessage }](t, op.do(t, "GET", demo+"/workers", nil), 200); len(n.Items) != 1 {
		t.Errorf("%d Workers", len(n.Items))
	}
}
