package daemon

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/api"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestMalformedHTTP sends what no client sends. Each is answered with a
// problem document, and the daemon goes on.
func TestMalformedHTTP(t *testing.T) {
	testenv.Root(t)
	d := rig.StartDaemons(t, rig.NewPlace(t, "disk", yoiUser), 0)
	before := names(t, d)
	post := func(path, contentType, body string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", path, contentType, len(body), body)
	}
	const j = "application/json"
	for _, c := range []struct {
		name, request string
		status        int
		code          policy.Code
	}{
		{"no JSON", post("/v1/repositories", j, "{"), 400, policy.CodeBadRequest},
		{"an array", post("/v1/repositories", j, "[]"), 400, policy.CodeBadRequest},
		{"unknown field", post("/v1/repositories", j, `{"source":"/x","root":"/"}`), 400, policy.CodeBadRequest},
		{"twice the same field", post("/v1/repositories", j, `{"source":"/x","source":"/y"}`), 400, policy.CodeBadRequest},
		{"another case", post("/v1/repositories", j, `{"Source":"/x"}`), 400, policy.CodeBadRequest},
		{"two documents", post("/v1/repositories", j, `{"source":"/x"}{}`), 400, policy.CodeBadRequest},
		{"not UTF-8", post("/v1/repositories", j, "{\"source\":\"\xff\"}"), 400, policy.CodeBadRequest},
		{"deep nesting", post("/v1/execution-workspaces", j, strings.Repeat(`{"repositories":[`, 5000)), 400, policy.CodeBadRequest},
		{"no content type", post("/v1/repositories", "", `{"source":"/x"}`), 400, policy.CodeBadRequest},
		{"a form", post("/v1/repositories", "application/x-www-form-urlencoded", "source=/x"), 400, policy.CodeBadRequest},
		{"oversized", post("/v1/repositories", j, `{"source":"`+strings.Repeat("x", 3<<20)+`"}`), 413, policy.CodeRequestTooLarge},
		{"a promised giant", "POST /v1/repositories HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n{", 413, policy.CodeRequestTooLarge},
		{"no such path", "GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n", 404, policy.CodeNotFound},
		{"no such method", "DELETE /v1/workers HTTP/1.1\r\nHost: x\r\n\r\n", 405, policy.CodeMethodNotAllowed},
		{"an id that is a path", "GET /v1/workers/..%2F..%2Fetc HTTP/1.1\r\nHost: x\r\n\r\n", 400, policy.CodeIDInvalid},
		{"a path that climbs", "GET /v1/workers/../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", 404, policy.CodeNotFound},
		{"a bad parameter", "GET /v1/workers?limit=-1 HTTP/1.1\r\nHost: x\r\n\r\n", 400, policy.CodeBadRequest},
		{"an unknown parameter", "GET /v1/workers?colour=blue HTTP/1.1\r\nHost: x\r\n\r\n", 400, policy.CodeBadRequest},
		{"a body with GET", "GET /v1/workers HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 400, policy.CodeBadRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := net.Dial("unix", d.API)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			go io.WriteString(conn, c.request) // the server may answer and close before all is sent
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var p api.Problem
			if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != c.status || p.Code != c.code || p.Detail == "" || resp.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("status %d, problem %+v, want %d %s", resp.StatusCode, p, c.status, c.code)
			}
		})
	}
	for _, raw := range []string{"\x00\x01\x02\r\n\r\n", "GET\r\n\r\n", strings.Repeat("A", 1<<20), "GET / HTTP/9.9\r\n\r\n", "GET /v1/info HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("y", 64<<10) + "\r\n\r\n"} {
		conn, err := net.Dial("unix", d.API)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		go io.WriteString(conn, raw)
		b, _ := io.ReadAll(conn) // an answer or a reset: both are fine
		if strings.HasPrefix(string(b), "HTTP/1.1 2") {
			t.Errorf("%.20q was answered with %.40q", raw, b)
		}
		conn.Close()
	}
	unharmed(t, d, before)
}

// names lists the Runtime root when nothing of the daemon's start is under way in it.
func names(t *testing.T, d *rig.Daemons) []string {
	t.Helper()
	if _, err := d.Client.Doctor(t.Context()); err != nil { // it asks the host itself when it starts
		t.Fatal(err)
	}
	return rig.Names(t, d.Root)
}

func unharmed(t *testing.T, d *rig.Daemons, before []string) {
	t.Helper()
	if _, err := d.Client.Info(t.Context()); err != nil {
		t.Errorf("the daemon no longer answers: %v\n%s", err, d.Runtimed.Log())
	}
	for _, diff := range rig.Difference(before, rig.Names(t, d.Root)) {
		t.Errorf("left a trace: %s", diff)
	}
	d.Stop(t)
	rig.Clean(t, d.Root)
}

// TestMalformedHelperMessages does the same to the helper, as its one peer:
// the daemon may have been taken over.
func TestMalformedHelperMessages(t *testing.T) {
	testenv.Root(t)
	d := rig.StartDaemons(t, rig.NewPlace(t, "disk", yoiUser), 0)
	before := names(t, d)
	request := func(op, body string) string { return fmt.Sprintf(`{"v":1,"id":7,"op":%q,"body":%s}`, op, body) }
	launch := func(change string) string {
		return request("launch", `{"worker_id":"wk-1","allocation_id":"ws-1","repositories":[{"repository_id":"r","tree_key":"`+strings.Repeat("a", 40)+`","strategy":"copy"}],"command":["true"],"env":[],"repository_id":"r","relative_cwd":"","root":"system","stdio":[false,false,false]`+change+`}`)
	}
	for _, c := range []struct {
		name, message string
		code          policy.Code
	}{
		{"no JSON", "hello", policy.CodeBadRequest},
		{"another version", `{"v":99,"id":1,"op":"live"}`, policy.CodeUnsupportedVersion},
		{"unknown operation", `{"v":1,"id":1,"op":"shell"}`, policy.CodeBadRequest},
		{"unknown field", `{"v":1,"id":1,"op":"live","path":"/"}`, policy.CodeBadRequest},
		{"two messages in one", `{"v":1,"id":1,"op":"live"}{"v":1,"id":2,"op":"live"}`, policy.CodeBadRequest},
		{"oversized", `{"v":1,"id":1,"op":"` + strings.Repeat("x", 65<<10) + `"}`, policy.CodeRequestTooLarge},
		{"no body", `{"v":1,"id":1,"op":"remove"}`, policy.CodeBadRequest},
		{"a path as an id", request("remove", `{"allocation_id":"../../etc"}`), policy.CodeIDInvalid},
		{"an absolute path as an id", request("remove", `{"allocation_id":"/etc"}`), policy.CodeIDInvalid},
		{"no id", request("remove", `{"allocation_id":""}`), policy.CodeIDInvalid},
		{"a dot", request("keep", `{"allocation_id":"."}`), policy.CodeIDInvalid},
		{"a path in the body", request("remove", `{"allocation_id":"ws-1","path":"/etc"}`), policy.CodeBadRequest},
		{"a tree that is a path", request("materialize", `{"allocation_id":"ws-1","repositories":[{"repository_id":"r","tree_key":"../../../x","strategy":"copy"}]}`), policy.CodeBadRequest},
		{"a repository that is a path", request("materialize", `{"allocation_id":"ws-1","repositories":[{"repository_id":"..","tree_key":"`+strings.Repeat("a", 40)+`","strategy":"copy"}]}`), policy.CodeIDInvalid},
		{"no repository", request("materialize", `{"allocation_id":"ws-1","repositories":[]}`), policy.CodeBadRequest},
		{"no such tree", request("materialize", `{"allocation_id":"ws-1","repositories":[{"repository_id":"r","tree_key":"`+strings.Repeat("a", 40)+`","strategy":"copy"}]}`), policy.CodeCacheCorrupt},
		{"no such strategy", request("materialize", `{"allocation_id":"ws-1","repositories":[{"repository_id":"r","tree_key":"`+strings.Repeat("a", 40)+`","strategy":"magic"}]}`), policy.CodeStrategyUnknown},
		{"a signal that is none", request("signal", `{"worker_id":"wk-1","signal":9999}`), policy.CodeSignalInvalid},
		{"a worker that is none", request("kill", `{"worker_id":"wk-1"}`), policy.CodeWorkerUnknown},
		{"a launch without descriptors", launch(""), policy.CodeBadRequest},
		{"a launch with a host path", launch(`,"root_path":"/"`), policy.CodeBadRequest},
		{"a launch with a spill that is not there", `{"v":1,"id":1,"op":"launch","spill":true}`, policy.CodeBadRequest},
		{"a launch that gives more directories than it sends", launch(`,"direct":1000`), policy.CodeBadRequest},
		{"a launch with a negative count", launch(`,"direct":-1`), policy.CodeBadRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := ask(t, d.HelperSoc, c.message, nil); got != c.code {
				t.Errorf("code %q, want %s", got, c.code)
			}
		})
	}
	t.Run("descriptors where none belong", func(t *testing.T) {
		if got := ask(t, d.HelperSoc, `{"v":1,"id":1,"op":"live"}`, []string{"/etc/passwd"}); got != policy.CodeBadRequest {
			t.Errorf("code %q", got)
		}
	})
	t.Run("a filter that is no sealed memfd", func(t *testing.T) {
		if got := ask(t, d.HelperSoc, launch(""), []string{"/etc/passwd"}); got != policy.CodeBadRequest {
			t.Errorf("code %q", got)
		}
	})
	t.Run("too many descriptors", func(t *testing.T) {
		many := make([]string, 100)
		for i := range many {
			many[i] = "/dev/null"
		}
		if got := ask(t, d.HelperSoc, launch(""), many); got != policy.CodeRequestTooLarge {
			t.Errorf("code %q", got)
		}
	})
	t.Run("descriptors are closed again", func(t *testing.T) {
		count := func() int {
			entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.Helper.Pid()))
			if err != nil {
				t.Fatal(err)
			}
			return len(entries)
		}
		ask(t, d.HelperSoc, launch(""), []string{"/etc/passwd"})
		n := count()
		for range 50 {
			ask(t, d.HelperSoc, launch(""), []string{"/etc/passwd", "/etc/passwd", "/etc/passwd"})
		}
		rig.Eventually(t, "the helper closes what it refused", func() bool { return count() <= n })
	})
	if rig.Difference(before, rig.Names(t, d.Root)) != nil {
		t.Log(d.Helper.Log())
	}
	unharmed(t, d, before)
}

// ask sends one raw message with descriptors and returns the answer's code.
func ask(t *testing.T, socket, message string, paths []string) policy.Code {
	t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var fds []int
	for _, p := range paths {
		f, err := os.Open(filepath.Clean(p))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fds = append(fds, int(f.Fd()))
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := conn.WriteMsgUnix([]byte(message), oob, nil); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 70<<10)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	var resp struct {
		Error *policy.Diagnostic `json:"error"`
	}
	if err := json.Unmarshal(buf[:n], &resp); err != nil {
		t.Fatalf("%q: %v", buf[:n], err)
	}
	if resp.Error == nil {
		return ""
	}
	return resp.Error.Code
}
