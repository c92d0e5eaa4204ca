package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/servicetest"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// TestClientIsTheService calls every method of both sides: what the service is
// asked and what it answers must be the same through the socket.
func TestClientIsTheService(t *testing.T) {
	svc := &servicetest.Service{Logs: []byte("hello\x00\xff\n")}
	socket, _ := serve(t, Options{Service: svc})
	client := NewClient(socket)
	args := map[reflect.Type]any{
		reflect.TypeFor[policy.RepositoryID](): servicetest.Repository,
		reflect.TypeFor[policy.AllocationID](): servicetest.Allocation,
		reflect.TypeFor[policy.WorkerID]():     servicetest.Worker,
		reflect.TypeFor[policy.PatchDigest]():  servicetest.Patch,
		reflect.TypeFor[policy.BundleDigest](): policy.BundleDigest(servicetest.Patch),

		reflect.TypeFor[policy.SnapshotDigest](): policy.SnapshotDigest(servicetest.Patch),
	}
	service := reflect.TypeFor[runtime.Service]()
	for i := range service.NumMethod() {
		m := service.Method(i)
		t.Run(m.Name, func(t *testing.T) {
			var in []reflect.Value
			for j := range m.Type.NumIn() {
				in = append(in, argument(t, m.Type.In(j), args))
			}
			if m.Name == "ListWorkspaces" { // that filter is for Workers only, and refused
				in[1] = reflect.ValueOf(runtime.ListFilter{WorkspaceID: "main", RepositoryID: "main", Status: "main", Limit: 1, After: "main"})
			}
			direct, seen := callBoth(svc, m.Name, in)
			through, seenThrough := callBoth(client, m.Name, in)
			if !reflect.DeepEqual(direct, through) {
				t.Errorf("direct  %#v\nthrough %#v", direct, through)
			}
			if !reflect.DeepEqual(seen, seenThrough) {
				t.Errorf("yielded direct %v, through %v", seen, seenThrough)
			}
			calls := svc.Calls()
			if a, b := calls[len(calls)-2], calls[len(calls)-1]; !reflect.DeepEqual(a, b) || a.Method != m.Name {
				t.Errorf("asked directly %+v, through the socket %+v", a, b)
			}
		})
	}
}

// argument makes a value of t with every field set.
func argument(t *testing.T, typ reflect.Type, known map[reflect.Type]any) reflect.Value {
	t.Helper()
	if v, ok := known[typ]; ok {
		return reflect.ValueOf(v)
	}
	switch typ {
	case reflect.TypeFor[context.Context]():
		return reflect.ValueOf(t.Context())
	case reflect.TypeFor[io.Writer](), reflect.TypeFor[io.Reader](), reflect.TypeFor[func(runtime.Event) bool](), reflect.TypeFor[func(runtime.LedgerRecord) bool]():
		return reflect.Zero(typ) // callBoth's
	case reflect.TypeFor[runtime.LogsRequest]():
		return reflect.ValueOf(runtime.LogsRequest{Stream: "stdout", Offset: 1, Limit: 6, Follow: true})
	}
	v := reflect.New(typ).Elem()
	fill(v)
	return v
}

func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("main")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint64:
		v.SetUint(100)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("KEY"), reflect.ValueOf("value"))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	}
}

// callBoth calls a method and gives back its results and what it streamed.
func callBoth(s runtime.Service, name string, in []reflect.Value) (results []any, streamed []any) {
	var out bytes.Buffer
	m := reflect.ValueOf(s).MethodByName(name)
	args := append([]reflect.Value(nil), in...)
	for i, a := range args {
		switch a.Type() {
		case reflect.TypeFor[io.Writer]():
			args[i] = reflect.ValueOf(&out)
		case reflect.TypeFor[io.Reader]():
			args[i] = reflect.ValueOf(strings.NewReader("an archive"))
		case reflect.TypeFor[func(runtime.Event) bool]():
			args[i] = reflect.ValueOf(func(e runtime.Event) bool { streamed = append(streamed, e); return true })
		case reflect.TypeFor[func(runtime.LedgerRecord) bool]():
			args[i] = reflect.ValueOf(func(r runtime.LedgerRecord) bool { streamed = append(streamed, r); return true })
		}
	}
	for _, r := range m.Call(args) {
		results = append(results, r.Interface())
	}
	if out.Len() > 0 {
		streamed = append(streamed, out.String())
	}
	return results, streamed
}

func TestDiagnosticsComeBack(t *testing.T) {
	want := policy.Errorf(policy.CodeUncollectedWork, "runtime.cleanup", "2 commits are collected by nobody").
		With("commits", "2").WithHint("Collect them.").Because(errors.New("/srv/x"))
	socket, _ := serve(t, Options{Service: &servicetest.Service{Err: want}})
	_, err := NewClient(socket).RemoveWorkspace(t.Context(), "ws-1", runtime.RemoveWorkspaceRequest{})
	got := policy.AsDiagnostic(err)
	if got.Cause != nil {
		t.Errorf("the cause came along: %v", got.Cause)
	}
	want.Cause = nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestClientChecksIDs(t *testing.T) {
	c := NewClient("/nonexistent/socket")
	for _, id := range []policy.WorkerID{"", "..", "a/b", "../info", "a?b", "-x"} {
		if _, err := c.GetWorker(t.Context(), id); !errors.Is(err, policy.CodeIDInvalid) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestClientRefusesTextThatJSONCannotCarry(t *testing.T) {
	svc := new(servicetest.Service)
	socket, _ := serve(t, Options{Service: svc})
	c := NewClient(socket)
	for _, req := range []runtime.SpawnWorkerRequest{
		{AllocationID: "ws-1", Command: []string{"a", "\xff"}},
		{AllocationID: "ws-1", Command: []string{"a"}, Env: map[string]string{"A": "\xc3"}},
		{AllocationID: "ws-1", Command: []string{"a"}, RelativeCwd: "\xe2\x82"},
	} {
		if _, err := c.SpawnWorker(t.Context(), req); !errors.Is(err, policy.CodeBadRequest) {
			t.Errorf("%+v: %v", req, err)
		}
	}
	if calls := svc.Calls(); len(calls) != 0 {
		t.Errorf("the service was asked %v", calls)
	}
}

// A nil list is an empty one, not null: the refusal is the service's.
func TestClientSendsNilListsEmpty(t *testing.T) {
	svc := new(servicetest.Service)
	socket, _ := serve(t, Options{Service: svc})
	if _, err := NewClient(socket).SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: "ws-1"}); err != nil {
		t.Error(err)
	}
}

func TestClientWithoutADaemon(t *testing.T) {
	dir := t.TempDir()
	if _, err := NewClient(filepath.Join(dir, "none")).Info(t.Context()); !errors.Is(err, policy.CodeUnavailable) {
		t.Errorf("no socket: %v", err)
	} else if d := policy.AsDiagnostic(err); strings.Contains(d.Message+d.Hint, dir) {
		t.Errorf("the message names a path: %v", d)
	}
	if Answers(t.Context(), filepath.Join(dir, "none")) {
		t.Error("nothing answers")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := NewClient(filepath.Join(dir, "none")).Info(ctx); !errors.Is(err, policy.CodeCanceled) {
		t.Errorf("canceled: %v", err)
	}
}

// other serves what is no yoi-runtimed.
func other(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return NewClient(socket)
}

func TestAnswersOfAnotherServer(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		ct     string
		body   string
		code   policy.Code
	}{
		"a page":              {200, "text/html", "<html>", policy.CodeInternal},
		"a failing page":      {500, "text/html", "<html>", policy.CodeInternal},
		"a redirect":          {302, "text/plain", "", policy.CodeInternal},
		"a problem of others": {400, problemType, `{"type":"about:blank","title":"x"}`, policy.CodeInternal},
		"broken JSON":         {400, problemType, `{`, policy.CodeInternal},
		"a later code":        {418, problemType, `{"type":"urn:yoi:diagnostic:teapot","code":"teapot","detail":"x"}`, "teapot"},
		"a code in the type":  {418, problemType, `{"type":"urn:yoi:diagnostic:teapot","detail":"x"}`, "teapot"},
		"a later field":       {200, jsonType, `{"runtime_id":"rt-1","more":1}`, ""},
	} {
		client := other(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/v1/elsewhere")
			w.Header().Set("Content-Type", c.ct)
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		})
		_, err := client.Info(t.Context())
		if c.code == "" && err != nil || c.code != "" && !errors.Is(err, c.code) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLongSocketPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(t.Context(), filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	srv := NewServer(Options{Service: new(servicetest.Service)})
	go func() { _ = srv.Serve(l) }()
	defer func() { _ = srv.Shutdown(t.Context()) }()
	if _, err := NewClient(filepath.Join(dir, "s")).Info(t.Context()); err != nil {
		t.Error(err)
	}
}
