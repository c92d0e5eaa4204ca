package systemd

import (
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/tests/internal/host"
)

// request is one request to the Backend, by a client of the machine: METHOD PATH TOKEN
// [BODY].
const request = `
import sys, urllib.request
method, path, token, *body = sys.argv[1:]
r = urllib.request.Request("http://127.0.0.1:8420" + path, method=method, data=body[0].encode() if body else None,
    headers={"Authorization": "Bearer " + token, "Content-Type": "application/json"})
sys.stdout.buffer.write(urllib.request.urlopen(r).read())
`

// TestBackend: the Backend serves, as a user of its own who has nothing but the
// Runtime's socket, with the package's sample configuration; and goes on when the
// daemon behind it is restarted.
func TestBackend(t *testing.T) {
	h := installed(t)
	if r := h.Run("systemctl", "start", "yoi-backend"); r.Code == 0 {
		t.Error("the Backend starts without a configuration")
	}
	h.OK("install", "-D", "-m", "644", "/usr/share/doc/yoi-runtime/examples/backend.toml", "/etc/yoi/backend.toml")
	h.OK("sh", "-c", "mkdir /srv/git && mv /srv/app /srv/git/app")
	backend := func(args ...string) host.Result {
		return h.RunAs("yoi-backend", append([]string{"yoi-backend", "--config", "/etc/yoi/backend.toml"}, args...)...)
	}
	token := strings.TrimSpace(backend("token", "add", "--workspace", "demo", "--role", "operator", "--label", "test").Want(0).Stdout)
	h.OK("systemctl", "enable", "--now", "yoi-backend")
	ask := func(method, path string, body ...string) host.Result {
		return h.RunAs("nobody", append([]string{"python3", "-c", request, method, "/api/w/demo" + path, token}, body...)...)
	}
	ws := answer[made](t, ask("POST", "/execution-workspaces", `{"repository_id":"app"}`))
	h.OK("systemctl", "restart", "yoi-runtimed")
	wk := answer[made](t, ask("POST", "/workers", `{"allocation_id":"`+ws.ID+`","command":["cat","README"]}`))
	h.Eventually("the worker has ended", func() bool {
		return answer[struct{ Status string }](t, ask("GET", "/workers/"+wk.ID)).Status == "exited"
	})
	if out := ask("GET", "/workers/"+wk.ID+"/logs").Want(0).Stdout; !strings.Contains(out, "hello") {
		t.Errorf("the log says %q", out)
	}
	// Its own files and the socket, and nothing of the Runtime's.
	for path, readable := range map[string]bool{"/var/lib/yoi-backend/backend.db": true, "/var/lib/yoi/runtime.db": false} {
		if r := h.RunAs("yoi-backend", "test", "-r", path); (r.Code == 0) != readable {
			t.Errorf("the Backend's user reading %s: %d", path, r.Code)
		}
	}
	if out := h.OK("systemctl", "show", "--property=User,SubState", "yoi-backend"); out != "User=yoi-backend\nSubState=running\n" {
		t.Errorf("%s", out)
	}
}
