package network

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// spends uses a header that it never has: at its own host, at the same host by the
// ordinary way out, and by a redirect to another. Then it looks for it everywhere.
const spends = `
curl -sS $YOI_ENDPOINT_TOKEN/take
curl -sS http://web.example/take
curl -sSL "$YOI_ENDPOINT_TOKEN/redirect?to=http://other.example/header"
env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\0' '\n'; cat /run/secrets/* 2>&1; cat /etc/hosts; ls -R /run /tmp /home /scratch
`

// wantSpent checks what reached the servers, and what the Worker has seen of it.
func wantSpent(t *testing.T, o *outside, c rig.Canaries, out string) {
	t.Helper()
	want := []string{"https web.example Bearer " + c.Values["token"], "http web.example "}
	if got := o.taken(); !slices.Equal(got, want) {
		t.Errorf("the host was given %q, want %q", got, want)
	}
	const lines = "taken\ntaken\nauthorization=\n"
	if !bytes.HasPrefix([]byte(out), []byte(lines)) {
		t.Errorf("the Worker has seen\n%s\nwant at first\n%s", out, lines)
	}
	c.Silent("what the Worker can find", []byte(out))
}

// trusting has the outside's authority believed for hosts of secrets.
func (w worker) trusting(t *testing.T, root, more string) {
	t.Helper()
	rig.Configure(t, root, w.place.UID, fmt.Sprintf("[network]\nroots = %q\n%s", filepath.Join(w.repo, "ca.pem"), more))
}

var spendRules = []string{"--allow", "web.example:80", "--allow", "other.example:80"}

// store writes the value where only the place's user reads it.
func (w worker) store(t *testing.T, c rig.Canaries) string {
	t.Helper()
	name := filepath.Join(w.place.Dir, "token")
	if err := os.WriteFile(name, []byte(c.Values["token"]+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(name, w.place.UID, w.place.UID); err != nil {
		t.Fatal(err)
	}
	return name
}

// A secret as a header reaches its one host, and nobody finds it: through yoi run.
func TestHeaderSecret(t *testing.T) {
	for _, uid := range []int{0, rig.Ordinary} {
		t.Run(fmt.Sprint(uid), func(t *testing.T) {
			w, o, c := newWorker(t, uid), needOutside(t), rig.NewCanaries(t, "token")
			before := rig.Before(t)
			from := w.store(t, c)
			w.trusting(t, w.yoi.Root, "")
			args := append([]string{"run", "--repo", w.repo, "--keep", "--json", "--secret", "token=file:" + from + ",as=http-header,host=web.example,prefix=Bearer "}, spendRules...)
			r := w.yoi.Run(t, append(args, "--", "sh", "-c", spends)...).Want(t, 0)
			wantSpent(t, o, c, r.Stderr) // with --json the command's output is there
			c.Silent("the evidence", []byte(r.Stdout))
			c.SilentBelow(w.yoi.Root)
			var ev runtime.Evidence
			r.JSON(t, &ev)
			wantUse(t, ev.Workers[0].Secrets, "caller")
			w.yoi.OK(t, "ws", "rm", "--discard", string(ev.AllocationID))
			rig.Clean(t, w.yoi.Root)
			before.Unchanged(t)
		})
	}
}

func wantUse(t *testing.T, got []policy.SecretUse, store string) {
	t.Helper()
	want := policy.SecretUse{Handle: "token", As: policy.SecretHTTPHeader, Name: "Authorization", Host: "web.example", Store: store}
	if len(got) != 1 || got[0] != want {
		t.Errorf("recorded is the use of %+v, want %+v", got, want)
	}
}

// The same behind daemons, while the Worker lives and after both have died.
func TestHeaderSecretBehindDaemons(t *testing.T) {
	eachHelper(t, func(t *testing.T, helperUID int) {
		w, o, c := newWorker(t, rig.Ordinary), needOutside(t), rig.NewCanaries(t, "token")
		a := &asking{before: rig.Before(t), d: rig.NewDaemons(t, w.place, helperUID)}
		w.trusting(t, a.d.Root, fmt.Sprintf("[secrets.token]\nfile = %q\nhosts = [\"web.example\"]\n", w.store(t, c)))
		a.d.HelperEnv = append(a.d.HelperEnv, "YOI_EGRESS="+rig.Program(t, "yoi-egress"))
		a.d.Start(t)
		a.ws = a.d.Workspace(t, w.repo, func(r *runtime.CreateWorkspaceRequest) {
			r.Sandbox.Network = policy.NetworkPolicy{Mode: policy.NetworkAllowlist, Rules: []string{"web.example:80", "other.example:80"}}
			r.Sandbox.Secrets = []policy.Secret{{Handle: "token", As: policy.SecretHTTPHeader, Host: "web.example", Prefix: "Bearer "}}
		}).ID
		a.id = a.d.Spawn(t, a.ws, "trap 'curl -sS $YOI_ENDPOINT_TOKEN/take; echo end' USR1; trap 'exit 0' TERM; { "+spends+" } >/scratch/found 2>&1; head -3 /scratch/found; echo ready; while :; do sleep 0.02; done").ID
		a.says(t, "taken\ntaken\nauthorization=\nready\n")
		y := a.d.Yoi(t, rig.Ordinary)
		wantSpent(t, o, c, y.OK(t, "worker", "exec", "-n", string(a.id), "--", "cat", "/scratch/found"))
		// Everybody but the proxy, whose it is.
		everywhere := func() {
			t.Helper()
			c.SilentProcesses()
			c.SilentMemory(a.d.Runtimed.Pid())
			c.SilentMemory(a.d.Helper.Pid())
			c.SilentBelow(a.d.Root)
			c.Silent("a daemon's log", []byte(a.d.Runtimed.Log()+a.d.Helper.Log()))
		}
		everywhere()
		a.restart(t)
		a.ask(t, "taken\nend\n")
		if got := o.taken(); !slices.Equal(got, []string{"https web.example Bearer " + c.Values["token"]}) {
			t.Errorf("after a restart the host was given %q", got)
		}
		everywhere()
		var said bytes.Buffer
		for _, args := range [][]string{{"worker", "show", "--json", string(a.id)}, {"worker", "egress", "--json", string(a.id)}, {"worker", "logs", string(a.id)},
			{"ws", "show", "--json", string(a.ws)}, {"ws", "evidence", string(a.ws)}, {"ledger", "show", "--json"}, {"events", "--json"}} {
			said.WriteString(y.OK(t, args...))
		}
		c.Silent("what commands say", said.Bytes())
		ended := a.end(t)
		wantUse(t, ended.Secrets, "file")
		b, err := json.Marshal(ended)
		if err != nil {
			t.Fatal(err)
		}
		c.Silent("the Worker's record", b)
		c.SilentBelow(a.d.Root)
	})
}
