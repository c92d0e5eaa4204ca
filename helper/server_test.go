package helper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
)

// fake answers without doing anything, and remembers what it was asked.
type fake struct {
	Helper
	launched LaunchRequest
	files    LaunchFiles
	stdin    []byte
}

func (f *fake) Probe(context.Context) (ProbeResult, error) {
	return ProbeResult{FileSystem: "btrfs"}, nil
}

func (f *fake) Wait(ctx context.Context, id policy.WorkerID) (nsexec.Outcome, error) {
	if id == "wk-slow" {
		<-ctx.Done()
		return nsexec.Outcome{}, policy.Errorf(policy.CodeCanceled, "fake", "canceled")
	}
	return nsexec.Outcome{ExitCode: 7}, nil
}

func (f *fake) Live(context.Context) ([]policy.WorkerID, error) {
	ids := make([]policy.WorkerID, 5000) // larger than an inline answer
	for i := range ids {
		ids[i] = policy.NewWorkerID()
	}
	return ids, nil
}

func (f *fake) ProcessUsage(context.Context, policy.WorkerID) (ProcessUsage, error) {
	return ProcessUsage{CPU: 3, Memory: 4, Processes: 1, Tasks: 2}, nil
}

func (f *fake) Keep(ctx context.Context, id policy.AllocationID) error {
	return policy.Errorf(policy.CodeAllocationUnknown, "fake", "no %s", id).Because(errors.New("/secret/host/path"))
}

func (f *fake) Launch(ctx context.Context, req LaunchRequest, files LaunchFiles) (*Launched, error) {
	f.launched = req
	f.files = LaunchFiles{Filter: files.Filter, Direct: make([]*os.File, len(files.Direct))}
	buf := make([]byte, 16)
	n, _ := files.Stdio[0].Read(buf)
	f.stdin = buf[:n]
	pidfd, err := os.Open(os.DevNull)
	return &Launched{Pidfd: pidfd, StartedAt: time.Unix(1, 0), IDBase: 9}, err
}

func serve(t *testing.T, uids ...uint32) (string, *fake) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := &Server{Helper: f, AllowUIDs: uids, Log: slog.New(slog.DiscardHandler)}
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return path, f
}

func TestRemoteRoundTrip(t *testing.T) {
	path, f := serve(t, uint32(os.Getuid()))
	r := Dial(path)
	defer r.Close()
	ctx := context.Background()
	if p, err := r.Probe(ctx); err != nil || p.FileSystem != "btrfs" {
		t.Fatalf("Probe = %+v, %v", p, err)
	}
	if ids, err := r.Live(ctx); err != nil || len(ids) != 5000 || !policy.ValidID(string(ids[4999])) {
		t.Fatalf("Live = %d ids, %v", len(ids), err)
	}
	if o, err := r.Wait(ctx, "wk-1"); err != nil || o.ExitCode != 7 {
		t.Fatalf("Wait = %+v, %v", o, err)
	}
	if u, err := r.ProcessUsage(ctx, "wk-1"); err != nil || u != (ProcessUsage{CPU: 3, Memory: 4, Processes: 1, Tasks: 2}) {
		t.Fatalf("ProcessUsage = %+v, %v", u, err)
	}
	pr, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Close()
	pw.WriteString("hello")
	pw.Close()
	big := strings.Repeat("x", 60<<10) // larger than an inline body
	got, err := r.Launch(ctx, LaunchRequest{WorkerID: "wk-1", Env: []string{"A=" + big}}, LaunchFiles{Stdio: [3]*os.File{pr}, Filter: []byte("filter")})
	if err != nil {
		t.Fatal(err)
	}
	defer got.Pidfd.Close()
	if string(f.stdin) != "hello" || string(f.files.Filter) != "filter" || got.IDBase != 9 || f.launched.Env[0] != "A="+big {
		t.Fatalf("launch came as %q %q %d", f.stdin, f.files.Filter, got.IDBase)
	}
	if fl, err := unix.FcntlInt(got.Pidfd.Fd(), unix.F_GETFD, 0); err != nil || fl&unix.FD_CLOEXEC == 0 {
		t.Errorf("a received descriptor is not close-on-exec: %#x, %v", fl, err)
	}
}

func TestErrorsCrossWithoutCause(t *testing.T) {
	path, _ := serve(t, uint32(os.Getuid()))
	r := Dial(path)
	defer r.Close()
	err := r.Keep(context.Background(), "ws-1")
	if !errors.Is(err, policy.CodeAllocationUnknown) || strings.Contains(err.Error(), "/secret") {
		t.Fatalf("Keep = %v", err)
	}
}

func TestCancelReachesTheHelper(t *testing.T) {
	path, _ := serve(t, uint32(os.Getuid()))
	r := Dial(path)
	defer r.Close()
	if _, err := r.Probe(context.Background()); err != nil { // the connection is there
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := r.Wait(ctx, "wk-slow"); !errors.Is(err, policy.CodeCanceled) {
		t.Fatalf("Wait = %v", err)
	}
}

func TestWrongUIDIsRefused(t *testing.T) {
	path, _ := serve(t, 4242424)
	r := Dial(path)
	defer r.Close()
	if _, err := r.Probe(context.Background()); !errors.Is(err, policy.CodePeerRefused) {
		t.Fatalf("Probe = %v", err)
	}
}

// TestMalformedMessages sends what a hostile peer would; each gets its code and
// the server goes on serving others.
func TestMalformedMessages(t *testing.T) {
	path, _ := serve(t, uint32(os.Getuid()))
	for name, c := range map[string]struct {
		msg  string
		code policy.Code
	}{
		"not json":      {"hello", policy.CodeBadRequest},
		"trailing":      {`{"v":1,"id":1,"op":"probe"} x`, policy.CodeBadRequest},
		"unknown field": {`{"v":1,"id":1,"op":"probe","path":"/etc"}`, policy.CodeBadRequest},
		"version":       {`{"v":99,"id":1,"op":"probe"}`, policy.CodeUnsupportedVersion},
		"operation":     {`{"v":1,"id":1,"op":"format_disk"}`, policy.CodeBadRequest},
		"no body":       {`{"v":1,"id":1,"op":"wait"}`, policy.CodeBadRequest},
		"body field":    {`{"v":1,"id":1,"op":"wait","body":{"worker_id":"wk-1","path":"/"}}`, policy.CodeBadRequest},
		"launch fds":    {`{"v":1,"id":1,"op":"launch","body":{"worker_id":"wk-1","stdio":[true,true,true]}}`, policy.CodeBadRequest},
		"negative fds":  {`{"v":1,"id":1,"op":"launch","body":{"direct":-5}}`, policy.CodeBadRequest},
		"spill missing": {`{"v":1,"id":1,"op":"probe","spill":true}`, policy.CodeBadRequest},
		"oversized":     {`{"v":1,"id":1,"op":"` + strings.Repeat("a", maxMessage) + `"}`, policy.CodeRequestTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			c0, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
			if err != nil {
				t.Fatal(err)
			}
			defer c0.Close()
			if _, err := c0.Write([]byte(c.msg)); err != nil {
				t.Fatal(err)
			}
			b, _, err := receiveMessage(c0, make([]byte, maxMessage+1))
			if err != nil {
				t.Fatal(err)
			}
			var resp response
			if err := json.Unmarshal(b, &resp); err != nil || resp.Error == nil || resp.Error.Code != c.code {
				t.Fatalf("answer %s, want code %s", b, c.code)
			}
		})
	}
}

// TestUnsealedBodyIsRefused: a peer that keeps a writable view could change the
// bytes after they were checked.
func TestUnsealedBodyIsRefused(t *testing.T) {
	path, _ := serve(t, uint32(os.Getuid()))
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.WriteString(`{"worker_id":"wk-1"}`)
	if err := sendMessage(c, []byte(`{"v":1,"id":1,"op":"wait","spill":true}`), []*os.File{f}); err != nil {
		t.Fatal(err)
	}
	b, _, err := receiveMessage(c, make([]byte, maxMessage+1))
	if err != nil || !bytes.Contains(b, []byte("sealed")) {
		t.Fatalf("answer %s, %v", b, err)
	}
}

func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		`{"v":1,"id":1,"op":"probe"}`,
		`{"v":1,"id":2,"op":"materialize","body":{"allocation_id":"ws-1","repositories":[{"repository_id":"a","tree_key":"0123456789012345678901234567890123456789","strategy":"auto"}]}}`,
		`{"v":1,"id":3,"op":"launch","body":{"worker_id":"wk-1","allocation_id":"ws-1","command":["true"],"stdio":[false,false,false]}}`,
		`{"v":1,"id":4,"op":"remove","body":{"allocation_id":"../../etc"}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var req request
		if decodeStrict(b, &req) != nil {
			return
		}
		var m MaterializeRequest
		if decodeBody(req.Body, &m) == nil && m.validate() == nil {
			for _, r := range m.Repositories {
				if strings.ContainsAny(string(m.AllocationID)+string(r.RepositoryID)+r.TreeKey, "/\x00") {
					t.Fatalf("a path was accepted as an id: %q", b)
				}
			}
		}
		var l launchBody
		if decodeBody(req.Body, &l) == nil && l.validate() == nil {
			if strings.HasPrefix(l.RelativeCwd, "/") || strings.Contains("/"+l.RelativeCwd+"/", "/../") {
				t.Fatalf("a path that leaves the workspace was accepted: %q", l.RelativeCwd)
			}
		}
	})
}
