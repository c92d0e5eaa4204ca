package api

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"yoi.dev/yoi-runtime/internal/servicetest"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// document loads openapi.json. With closed, an object of an answer may hold
// only what is documented; the document itself leaves answers open, so that a
// generated client does not break on a new field.
func document(t *testing.T, closed bool) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if closed {
		no := false
		for _, s := range doc.Components.Schemas {
			if len(s.Value.Properties) > 0 {
				s.Value.AdditionalProperties.Has = &no
			}
		}
	}
	return doc
}

func TestEveryRouteIsDocumentedAndEveryDocumentedRouteServed(t *testing.T) {
	doc := document(t, false)
	served := map[string]route{}
	for _, r := range routes() {
		served[r.method+" "+r.path] = r
	}
	for path, it := range doc.Paths.Map() {
		for method, op := range it.Operations() {
			r, ok := served[method+" "+path]
			if !ok {
				t.Errorf("%s %s is documented, not served", method, path)
				continue
			}
			delete(served, method+" "+path)
			if op.OperationID != r.operation {
				t.Errorf("%s %s: operationId %q, served as %q", method, path, op.OperationID, r.operation)
			}
			checkParameters(t, r, op)
		}
	}
	for name := range served {
		t.Errorf("%s is served, not documented", name)
	}
}

func checkParameters(t *testing.T, r route, op *openapi3.Operation) {
	t.Helper()
	var query []string
	key := false
	for _, p := range op.Parameters {
		switch {
		case p.Value.In == "query":
			query = append(query, p.Value.Name)
		case p.Value.Name == "Idempotency-Key":
			key = true
		}
	}
	if want := slices.Sorted(slices.Values(r.query)); !slices.Equal(slices.Sorted(slices.Values(query)), want) {
		t.Errorf("%s: parameters %v are documented, %v taken", r.operation, query, want)
	}
	if want := r.method == "POST" && !r.once; key != want {
		t.Errorf("%s: Idempotency-Key documented %v, taken %v", r.operation, key, want)
	}
}

// TestSchemasAreTheGoTypes compares names and, in answers, which fields are
// always there.
func TestSchemasAreTheGoTypes(t *testing.T) {
	answers := map[string]any{
		"Problem": Problem{}, "Diagnostic": policy.Diagnostic{}, "DiagnosticItem": policy.DiagnosticItem{}, "Info": runtime.Info{}, "Repository": runtime.Repository{},
		"RepositoryList": repositoryList{}, "FetchResult": runtime.FetchResult{}, "RepositoryPoint": policy.RepositoryPoint{},
		"ResolveResult": runtime.ResolveResult{}, "Workspace": runtime.Workspace{}, "WorkspaceList": runtime.WorkspaceList{},
		"Evidence": runtime.Evidence{}, "DiskUsage": runtime.DiskUsage{}, "Worker": runtime.Worker{}, "WorkerList": runtime.WorkerList{}, "Outcome": runtime.Outcome{}, "EgressReport": runtime.EgressReport{}, "NetworkUsage": policy.NetworkUsage{}, "NetworkRuleUsage": policy.NetworkRuleUsage{}, "Decision": runtime.Decision{}, "Protections": policy.Protections{}, "SecretUse": policy.SecretUse{}, "Work": runtime.Work{}, "DeniedCall": runtime.DeniedCall{},
		"RuntimeStatus": runtime.RuntimeStatus{}, "CleanupRecord": runtime.CleanupRecord{},
		"DoctorReport": runtime.DoctorReport{}, "DoctorCheck": runtime.DoctorCheck{}, "StrategyCheck": runtime.StrategyCheck{}, "StrategyCost": runtime.StrategyCost{},
		"RepositoryOptions": policy.RepositoryOptions{}, "GCReport": runtime.GCReport{}, "GCItem": runtime.GCItem{}, "CacheUse": policy.CacheUse{}, "QuotaEvidence": policy.QuotaEvidence{}, "RecoveryReport": runtime.RecoveryReport{}, "Event": runtime.Event{},
		"LedgerRecord": runtime.LedgerRecord{}, "LedgerReport": runtime.LedgerReport{}, "LedgerStreamInfo": runtime.LedgerStreamInfo{},
		"Image": runtime.Image{}, "ImageList": imageList{}, "RootImage": runtime.RootImage{},
		"Bundle": runtime.Bundle{}, "BundleList": bundleList{}, "Patch": runtime.Patch{}, "PatchList": patchList{}, "DirtyState": runtime.DirtyState{}, "SourceState": runtime.SourceState{},
		"StoredSnapshot": runtime.StoredSnapshot{}, "StoredSnapshotItem": runtime.StoredSnapshotItem{}, "StoredSnapshotList": runtime.StoredSnapshotList{},
		"DiffReport": runtime.DiffReport{}, "RepositoryDiff": runtime.RepositoryDiff{}, "DiffFile": runtime.DiffFile{},
		"StatusReport": runtime.StatusReport{}, "RepositoryStatus": runtime.RepositoryStatus{}, "StatusEntry": runtime.StatusEntry{},
		"WorkerUsage": runtime.WorkerUsage{}, "RefList": runtime.RefList{}, "Ref": runtime.Ref{}, "DirectoryList": runtime.DirectoryList{}, "CreationProgress": runtime.CreationProgress{},
		"CommitsReport": runtime.CommitsReport{}, "RepositoryCommits": runtime.RepositoryCommits{}, "WorkspaceCommit": runtime.WorkspaceCommit{},
		"Collected": runtime.Collected{}, "CollectedList": collectedList{}, "Snapshot": runtime.Snapshot{}, "SnapshotList": snapshotList{},
	}
	requests := map[string]any{
		"AddRepositoryRequest": runtime.AddRepositoryRequest{}, "Selector": policy.Selector{}, "ResolveRequest": runtime.ResolveRequest{},
		"RepositoryRequest": runtime.RepositoryRequest{}, "CleanupPolicy": policy.CleanupPolicy{}, "NetworkPolicy": policy.NetworkPolicy{},
		"Limits": policy.Limits{}, "Quota": policy.Quota{}, "Secret": policy.Secret{}, "DependencyCache": policy.DependencyCache{}, "SandboxPolicy": policy.SandboxPolicy{}, "CreateWorkspaceRequest": runtime.CreateWorkspaceRequest{},
		"RemoveWorkspaceRequest": runtime.RemoveWorkspaceRequest{}, "SpawnWorkerRequest": runtime.SpawnWorkerRequest{},
		"SignalRequest": runtime.SignalRequest{}, "StopRequest": runtime.StopRequest{}, "GCRequest": runtime.GCRequest{},
		"AddPatchRequest": runtime.AddPatchRequest{}, "ArtifactPolicy": policy.ArtifactPolicy{},
		"ExportSnapshotRequest": runtime.ExportSnapshotRequest{}, "ImportSnapshotRequest": runtime.ImportSnapshotRequest{},
	}
	requests["ExecRequest"], requests["WindowSize"], answers["Session"] = runtime.ExecRequest{}, runtime.WindowSize{}, runtime.Session{}
	answers["Process"], answers["ProcessList"] = runtime.Process{}, runtime.ProcessList{}
	requests["AttachRequest"] = runtime.AttachRequest{}
	requests["ForkRequest"], requests["SnapshotRequest"], requests["SnapshotID"] = runtime.ForkRequest{}, runtime.SnapshotRequest{}, runtime.SnapshotID{}
	requests["CollectRequest"], requests["CollectedRequest"] = runtime.CollectRequest{}, runtime.CollectedRequest{}
	schemas := document(t, false).Components.Schemas
	for name := range schemas {
		if answers[name] == nil && requests[name] == nil {
			t.Errorf("the schema %s belongs to no type", name)
		}
	}
	for name, v := range answers {
		s, always := schemas[name], alwaysThere(v)
		checkNames(t, name, s, v)
		if s != nil && !slices.Equal(slices.Sorted(slices.Values(s.Value.Required)), always) {
			t.Errorf("%s: %v are required, %v always there", name, s.Value.Required, always)
		}
	}
	for name, v := range requests {
		checkNames(t, name, schemas[name], v)
		if s := schemas[name]; s != nil && (s.Value.AdditionalProperties.Has == nil || *s.Value.AdditionalProperties.Has) {
			t.Errorf("%s is decoded strictly, but documented open", name)
		}
	}
}

func checkNames(t *testing.T, name string, s *openapi3.SchemaRef, v any) {
	t.Helper()
	if s == nil {
		t.Errorf("the type %s has no schema", name)
		return
	}
	documented := slices.Sorted(maps.Keys(s.Value.Properties))
	if fields := slices.Sorted(maps.Keys(fieldsOf(reflect.TypeOf(v)))); !slices.Equal(documented, fields) {
		t.Errorf("%s: documented %v, the type has %v", name, documented, fields)
	}
}

func alwaysThere(v any) []string {
	var out []string
	for f := range reflect.TypeOf(v).Fields() {
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" && !strings.Contains(opts, "omit") {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// example is a request of an operation, with everything that it takes.
type example struct{ path, body string }

var examples = map[string]example{
	"getInfo":              {path: "/v1/info"},
	"getDoctor":            {path: "/v1/doctor"},
	"getMetrics":           {path: "/metrics"},
	"getStatus":            {path: "/v1/status"},
	"collectGarbage":       {"/v1/gc", `{"dry_run":true,"keep_cache_bytes":1}`},
	"getOpenAPI":           {path: "/v1/openapi.json"},
	"listRepositories":     {path: "/v1/repositories"},
	"addRepository":        {"/v1/repositories", `{"id":"hello","source":"/srv/hello"}`},
	"getRepository":        {path: "/v1/repositories/hello"},
	"removeRepository":     {path: "/v1/repositories/hello"},
	"fetchRepository":      {path: "/v1/repositories/hello/fetch"},
	"listRefs":             {path: "/v1/repositories/hello/refs?part=m&limit=3"},
	"getCreationProgress":  {path: "/v1/creations?key=k"},
	"listDirectories":      {path: "/v1/execution-workspaces/ws-0123456789abcdef/directories?repository_id=hello&path=src"},
	"resolve":              {"/v1/resolve", `{"repository_id":"hello","selector":{"kind":"branch","value":"main"},"scope":["src"]}`},
	"listPatches":          {path: "/v1/patches"},
	"addPatch":             {"/v1/patches", `{"content":"ZGlmZg=="}`},
	"removePatch":          {path: "/v1/patches/3333333333333333333333333333333333333333333333333333333333333333"},
	"listBundles":          {path: "/v1/config-bundles"},
	"addBundle":            {"/v1/config-bundles", "an archive"},
	"removeBundle":         {path: "/v1/config-bundles/3333333333333333333333333333333333333333333333333333333333333333"},
	"listImages":           {path: "/v1/images"},
	"importImage":          {"/v1/images?name=debian-12&select=debian%3A12&driver=vfs", "an archive"},
	"getImage":             {path: "/v1/images/debian-12"},
	"removeImage":          {path: "/v1/images/debian-12"},
	"listWorkspaces":       {path: "/v1/execution-workspaces?workspace_id=default&repository_id=hello&status=active&limit=3&after=x"},
	"listStoredSnapshots":  {path: "/v1/snapshots?store=/srv/snapshots"},
	"exportSnapshot":       {"/v1/snapshots", `{"store":"/srv/snapshots","repository_id":"hello","selector":{},"scope":["src"],"allocation_id":"ws-0123456789abcdef"}`},
	"importSnapshot":       {"/v1/snapshots/import", `{"store":"/srv/snapshots","digest":"sha256:3333333333333333333333333333333333333333333333333333333333333333","repository_id":"hello","scope":["src"]}`},
	"removeStoredSnapshot": {path: "/v1/snapshots/3333333333333333333333333333333333333333333333333333333333333333?store=/srv/snapshots"},
	"createWorkspace": {"/v1/execution-workspaces", `{"workspace_id":"default","repositories":[{"repository_id":"hello",
		"selector":{},"scope":["src"],"branch":"b","patch":"sha256:3333333333333333333333333333333333333333333333333333333333333333"}],"strategy":"auto","dirty_state_policy":"clean_point_only",
		"cleanup_policy":{"mode":"keep_for","for":1,"discard_uncollected":true},"sandbox_policy":{"root":"system",
		"network":{"mode":"allowlist","rules":["example.org:443"],"transparent":true,"max_bytes":1,"max_connections":2,"idle_timeout":1000000000},"seccomp":"strict","seccomp_allow":["ptrace"],"limits":{"nice":1},"env":{"A":"b"},"config_bundle":"sha256:3333333333333333333333333333333333333333333333333333333333333333","tools":["git","/usr/bin/make"],"secrets":[{"handle":"npm","as":"env","name":"NPM_TOKEN"}]},
		"idempotency_key":"k"}`},
	"getWorkspace":     {path: "/v1/execution-workspaces/ws-0123456789abcdef"},
	"getEvidence":      {path: "/v1/execution-workspaces/ws-0123456789abcdef/evidence"},
	"getWorkspaceDisk": {path: "/v1/execution-workspaces/ws-0123456789abcdef/disk"},
	"removeWorkspace":  {"/v1/execution-workspaces/ws-0123456789abcdef/cleanup", `{"discard":true,"stop":true}`},
	"listWorkers":      {path: "/v1/workers?allocation_id=ws-0123456789abcdef&status=running"},
	"spawnWorker":      {"/v1/workers", `{"allocation_id":"ws-0123456789abcdef","command":["make"],"repository_id":"hello","relative_cwd":"src","env":{"A":"b"},"limits":{"wall_clock":1000000},"terminal":true,"rows":24,"columns":80}`},
	"getWorker":        {path: "/v1/workers/wk-0123456789abcdef"},
	"getWorkerLogs":    {path: "/v1/workers/wk-0123456789abcdef/logs?stream=stdout&offset=1&limit=4&follow=true"},
	"getWorkerEgress":  {path: "/v1/workers/wk-0123456789abcdef/egress?limit=10"},
	"signalWorker":     {"/v1/workers/wk-0123456789abcdef/signal", `{"signal":"TERM"}`},
	"stopWorker":       {"/v1/workers/wk-0123456789abcdef/stop", `{"grace_ns":1000}`},
	"execWorker": {"/v1/workers/wk-0123456789abcdef/exec", frames("s", `{"command":["sh"],"repository_id":"hello","relative_cwd":"src","env":{"A":"b"},"terminal":true,"rows":24,"columns":80}`,
		"w", `{"rows":2,"columns":3}`, "k", "\x0f", "i", "hello", "e", "")},
	"getWorkerUsage":      {path: "/v1/workers/wk-0123456789abcdef/usage"},
	"attachWorker":        {"/v1/workers/wk-0123456789abcdef/attach", frames("s", `{"rows":24,"columns":80}`, "i", "ls\r", "e", "")},
	"listWorkerProcesses": {path: "/v1/workers/wk-0123456789abcdef/processes"},
	"pauseWorker":         {path: "/v1/workers/wk-0123456789abcdef/pause"},
	"resumeWorker":        {path: "/v1/workers/wk-0123456789abcdef/resume"},
	"waitWorker":          {path: "/v1/workers/wk-0123456789abcdef/wait"},
	"streamEvents":        {path: "/v1/events?after=0&owner=ws-0123456789abcdef&follow=true"},
	"getLedgerRecords":    {path: "/v1/ledger/records?owner=ws-0123456789abcdef&held=true"},
	"verifyLedger":        {path: "/v1/ledger/verify"},
	"replayLedger":        {path: "/v1/ledger/replay"},
}

// frames is a body of kinds and contents in turn.
func frames(parts ...string) string {
	var b strings.Builder
	f := &frameWriter{w: &b}
	for i := 0; i+1 < len(parts); i += 2 {
		if err := f.frame(parts[i][0], []byte(parts[i+1])); err != nil {
			panic(err)
		}
	}
	return b.String()
}

func TestAnswersFollowTheDocument(t *testing.T) {
	openapi3filter.RegisterBodyDecoder(linesType, decodeLine)
	openapi3filter.RegisterBodyDecoder(archiveType, openapi3filter.FileBodyDecoder)
	openapi3filter.RegisterBodyDecoder(sessionType, openapi3filter.FileBodyDecoder)
	router, err := gorillamux.NewRouter(document(t, true))
	if err != nil {
		t.Fatal(err)
	}
	services := map[string]*servicetest.Service{
		"full":  {Logs: []byte("hello")},
		"empty": {Empty: true},
		"refusing": {Err: policy.Errorf(policy.CodeAllocationInUse, "runtime.x", "it is in use").With("worker", "wk-1").
			Because(io.ErrUnexpectedEOF)},
		"failing":  {Err: io.ErrUnexpectedEOF},
		"warning":  {Err: policy.Errorf(policy.CodeShallowSource, "runtime.x", "history is cut")},
		"newer":    {Err: policy.Errorf("made_up_later", "runtime.x", "not known here")},
		"panicing": {Panic: "/etc/secret"},
	}
	for _, r := range routes() {
		ex, ok := examples[r.operation]
		if !ok {
			t.Errorf("%s has no example", r.operation)
			continue
		}
		for kind, svc := range services {
			t.Run(r.operation+"/"+kind, func(t *testing.T) {
				code := checkAnswer(t, router, svc, r.method, ex)
				failed := svc.Err != nil || svc.Panic != nil
				if r.operation == "getOpenAPI" {
					failed = false
				}
				if failed != (code >= 400) {
					t.Errorf("status %d", code)
				}
			})
		}
	}
}

// checkAnswer sends one request and holds both sides against the document.
func checkAnswer(t *testing.T, router routers.Router, svc runtime.Service, method string, ex example) int {
	t.Helper()
	req := httptest.NewRequest(method, ex.path, strings.NewReader(ex.body))
	if ex.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if req.Method == "POST" && (req.URL.Path == "/v1/images" || req.URL.Path == "/v1/config-bundles") {
		req.Header.Set("Content-Type", "application/x-tar")
	}
	if strings.HasSuffix(req.URL.Path, "/exec") || strings.HasSuffix(req.URL.Path, "/attach") {
		req.Header.Set("Content-Type", sessionType)
	}
	rt, params, err := router.FindRoute(req)
	if err != nil {
		t.Fatal(err)
	}
	in := &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: rt}
	if err := openapi3filter.ValidateRequest(t.Context(), in); err != nil {
		t.Fatalf("the example is not documented: %v", err)
	}
	req.Body = io.NopCloser(strings.NewReader(ex.body))
	w := httptest.NewRecorder()
	NewServer(Options{Service: svc}).ServeHTTP(w, req)
	out := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: w.Code, Header: w.Header(),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	}
	if w.Body.Len() == 0 && w.Code == http.StatusOK { // a stream without a line
		return w.Code
	}
	out.SetBodyBytes(w.Body.Bytes())
	if err := openapi3filter.ValidateResponse(t.Context(), out); err != nil {
		t.Errorf("status %d, body %s: %v", w.Code, w.Body, err)
	}
	if strings.Contains(w.Body.String(), "/etc/secret") || strings.Contains(w.Body.String(), "unexpected EOF") {
		t.Errorf("the cause leaks: %s", w.Body)
	}
	return w.Code
}

// decodeLine gives the validator the first of the JSON lines; they are alike.
func decodeLine(body io.Reader, _ http.Header, _ *openapi3.SchemaRef, _ openapi3filter.EncodingFn) (any, error) {
	b, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	first, _, _ := bytes.Cut(b, []byte("\n"))
	var v any
	err = json.Unmarshal(first, &v)
	return v, err
}
