package authority

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// digestOf is what a Worker that has a value prints in its place.
func digestOf(value string) string {
	sum := sha256.Sum256([]byte(value))
	return hex.EncodeToString(sum[:])
}

const tellDigests = `sha256sum </run/secrets/file-token; printf %s "$ENV_TOKEN" | sha256sum; sha256sum </run/secrets/renamed; stat -c '%a %u' /run/secrets/file-token; ls /run/secrets`

func wantDigests(c rig.Canaries) string {
	return digestOf(c.Values["file-token"]) + "  -\n" + digestOf(c.Values["env-token"]) + "  -\n" + digestOf(c.Values["cmd-token"]) + "  -\n400 1000\nfile-token\nrenamed\n"
}

// TestSecretsAreSeenByTheirWorkerAlone drives a daemon pair through everything that
// it has, with secrets, and searches for their values everywhere else.
func TestSecretsAreSeenByTheirWorkerAlone(t *testing.T) {
	var c rig.Canaries
	var store string
	pairs(t, func(p rig.Place, d *rig.Daemons) {
		c = rig.NewCanaries(t, "file-token", "env-token", "cmd-token", "failing", "nul", "caller")
		store = filepath.Join(p.Dir, "store")
		if err := errors.Join(os.Mkdir(store, 0o700), os.Chown(store, yoiUser, yoiUser)); err != nil {
			t.Fatal(err)
		}
		write(t, store+"/file-token", c.Values["file-token"], yoiUser)
		write(t, store+"/env-token", c.Values["env-token"]+"\n", yoiUser)
		write(t, store+"/cmd-token", c.Values["cmd-token"], yoiUser)
		write(t, store+"/failing", c.Values["failing"], yoiUser)
		write(t, store+"/nul", c.Values["nul"]+"\x00", yoiUser)
		d.RuntimedEnv = append(d.RuntimedEnv, "CREDENTIALS_DIRECTORY="+store)
		rig.Configure(t, d.Root, yoiUser, `
[secrets.file-token]
file = "`+store+`/file-token"
[secrets.env-token]
credential = "env-token"
[secrets.cmd-token]
command = ["/bin/cat", "`+store+`/cmd-token"]
[secrets.failing]
command = ["/bin/sh", "-c", "cat `+store+`/failing; cat `+store+`/failing >&2; exit 1"]
[secrets.nul]
file = "`+store+`/nul"
[secrets.elsewhere]
file = "`+store+`/file-token"
workspaces = ["another"]
[secrets.header]
file = "`+store+`/file-token"
hosts = ["api.example.org"]
`)
	}, func(t *testing.T, d *rig.Daemons, repo string) {
		c.T = t
		file := func(h policy.SecretHandle) policy.Secret { return policy.Secret{Handle: h, As: policy.SecretFile} }
		good := policy.SandboxPolicy{Secrets: []policy.Secret{
			file("file-token"), {Handle: "env-token", As: policy.SecretEnv}, {Handle: "cmd-token", As: policy.SecretFile, Name: "renamed"},
		}}
		ws := workspace(t, d, repo, good)

		// A Worker that lives while we look.
		live := d.Spawn(t, ws.ID, tellDigests+"; echo ready; while ! test -e /scratch/go; do sleep 0.05; done; "+tellDigests)
		rig.Eventually(t, "the Worker is ready", func() bool {
			var b strings.Builder
			_, err := d.Client.WorkerLogs(t.Context(), live.ID, runtime.LogsRequest{}, &b)
			return err == nil && strings.HasSuffix(b.String(), "ready\n")
		})
		c.SilentProcesses()
		c.SilentMemory(d.Runtimed.Pid())
		c.SilentMemory(d.Helper.Pid())
		c.SilentBelow(d.Root)

		// A neighbour finds nothing of it.
		other := workspace(t, d, repo, policy.SandboxPolicy{})
		w := d.Spawn(t, other.ID, `ls /run/secrets 2>&1; env | grep -i token; for p in /proc/[0-9]*; do cat $p/root/run/secrets/* 2>/dev/null; tr '\0' '\n' <$p/environ 2>/dev/null | grep -i token; done; grep -c secrets /proc/self/mountinfo; echo end`)
		if _, out := ended(t, d, w.ID); !strings.HasSuffix(out, "end\nls: cannot access '/run/secrets': No such file or directory\n") && out != "ls: cannot access '/run/secrets': No such file or directory\n0\nend\n" {
			t.Errorf("the neighbour finds %q", out)
		}

		// Both daemons die and come back; the Worker goes on with what it has.
		d.Runtimed.Kill(t)
		d.Helper.Kill(t)
		d.Start(t)
		c.SilentMemory(d.Runtimed.Pid())
		c.SilentMemory(d.Helper.Pid())
		c.SilentProcesses()
		// It is told from inside: an overlay does not show what the host writes.
		d.Yoi(t, yoiUser).OK(t, "worker", "exec", string(live.ID), "--", "touch", "/scratch/go")
		got, out := ended(t, d, live.ID)
		if want := wantDigests(c); out != want+"ready\n"+want {
			t.Errorf("the Worker has\n%s\nwant twice\n%s", out, want)
		}
		checkUses(t, got.Secrets)

		// Every refusal.
		var said bytes.Buffer
		for _, r := range []struct {
			secret policy.Secret
			code   policy.Code
			spawn  bool // it is found out only then
		}{
			{file("nobody"), policy.CodeSecretUnknown, false},
			{file("elsewhere"), policy.CodeSecretRefused, false},
			{file("header"), policy.CodeSecretRefused, false},
			{policy.Secret{Handle: "header", As: policy.SecretHTTPHeader, Host: "api.example.org"}, policy.CodePolicyInvalid, false},
			{file("failing"), policy.CodeSecretUnavailable, true},
			{policy.Secret{Handle: "nul", As: policy.SecretEnv}, policy.CodeSecretInvalid, true},
		} {
			req := runtime.CreateWorkspaceRequest{Repositories: []runtime.RepositoryRequest{{RepositoryID: ws.Points[0].RepositoryID}}, Sandbox: policy.SandboxPolicy{Secrets: []policy.Secret{r.secret}}}
			made, err := d.Client.CreateWorkspace(t.Context(), req)
			if r.spawn && err == nil {
				_, err = d.Client.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: made.ID, Command: []string{"true"}})
				remove(t, d, made.ID)
			}
			if !errors.Is(err, r.code) {
				t.Errorf("%s: %v, want %s", r.secret.Handle, err, r.code)
			}
			b, _ := json.Marshal(policy.AsDiagnostic(err))
			said.Write(b)
			fmt.Fprint(&said, err)
		}

		// Every command, also verbose, and what it says.
		y := d.Yoi(t, yoiUser)
		fork := strings.TrimSpace(y.OK(t, "ws", "fork", "--json", string(ws.ID)))
		for _, args := range [][]string{
			{"ws", "list", "--json"}, {"ws", "show", "--json", string(ws.ID)}, {"ws", "evidence", string(ws.ID)}, {"ws", "status", string(ws.ID)}, {"ws", "diff", string(ws.ID)},
			{"worker", "list", "--json"}, {"worker", "show", "--json", string(live.ID)}, {"worker", "logs", string(live.ID)}, {"ledger", "show", "--json"}, {"ledger", "verify"},
			{"doctor", "--json"}, {"repo", "list", "--json"}, {"gc", "--json"}, {"bundle", "list"}, {"worker", "spawn", string(ws.ID), "--", "nosuch"}, {"ws", "show", "nosuch"},
		} {
			r := y.Run(t, args...)
			said.WriteString(r.Stdout + r.Stderr)
		}
		said.WriteString(fork)
		c.Silent("what commands and answers say", said.Bytes())
		for _, p := range []*rig.Daemon{d.Runtimed, d.Helper} {
			c.Silent("a daemon's log", []byte(p.Log()))
		}
		list, err := d.Client.ListWorkspaces(t.Context(), runtime.ListFilter{})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range list.Items {
			if v.Status == runtime.WorkspaceActive || v.Status == runtime.WorkspaceStopped {
				remove(t, d, v.ID)
			}
		}
		gone(t)
		c.SilentBelow(d.Root)
		c.SilentMemory(d.Runtimed.Pid())
		c.SilentMemory(d.Helper.Pid())
		if _, err := os.Stat(store + "/file-token"); err != nil {
			t.Errorf("the store: %v", err)
		}
	})
}

func checkUses(t *testing.T, uses []policy.SecretUse) {
	t.Helper()
	want := []policy.SecretUse{
		{Handle: "file-token", As: policy.SecretFile, Name: "file-token", Store: "file"},
		{Handle: "env-token", As: policy.SecretEnv, Name: "ENV_TOKEN", Store: "credential"},
		{Handle: "cmd-token", As: policy.SecretFile, Name: "renamed", Store: "command"},
	}
	if fmt.Sprint(uses) != fmt.Sprint(want) {
		t.Errorf("the evidence says %+v", uses)
	}
}

// gone waits until no mount namespace of the machine has a directory of secrets: the
// kernel has freed its pages then.
func gone(t *testing.T) {
	t.Helper()
	rig.Eventually(t, "no directory of secrets is mounted anywhere", func() bool {
		files, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(" "+policy.SecretsAt+" ")) {
				return false
			}
		}
		return true
	})
}

// TestCallersSecrets: yoi run takes its caller's own, from each of its sources.
func TestCallersSecrets(t *testing.T) {
	embedded(t, func(t *testing.T, p rig.Place, y rig.Yoi, repo string) {
		c := rig.NewCanaries(t, "file-token", "env-token", "cmd-token")
		store := t.TempDir()
		if err := os.Chmod(store, 0o755); err != nil {
			t.Fatal(err)
		}
		from := write(t, store+"/token", c.Values["file-token"], p.UID)
		cmd := write(t, store+"/cmd", c.Values["cmd-token"], p.UID)
		parents(t, store)
		y.Env = append(y.Env, "OWN_TOKEN="+c.Values["env-token"])
		run := func(more ...string) rig.Result {
			return y.Run(t, append([]string{"run", "--repo", repo, "--json", "--secret", "file-token=file:" + from, "--secret", "env-token=env:OWN_TOKEN,as=env",
				"--secret", "renamed=cmd:cat " + cmd}, more...)...)
		}
		r := run("--", "sh", "-c", "{ "+tellDigests+"; } >&2").Want(t, 0)
		if r.Stderr != wantDigests(c) {
			t.Errorf("the command has\n%s\nwant\n%s", r.Stderr, wantDigests(c))
		}
		var ev runtime.Evidence
		r.JSON(t, &ev)
		if len(ev.Workers) != 1 || len(ev.Workers[0].Secrets) != 3 || ev.Workers[0].Secrets[1] != (policy.SecretUse{Handle: "env-token", As: policy.SecretEnv, Name: "ENV_TOKEN", Store: "caller"}) {
			t.Errorf("the evidence is %+v", ev.Workers)
		}
		failed := run("--", "nosuch").Want(t, 127)
		kept := run("--keep", "--", "false").Want(t, 1)
		for _, said := range []string{r.Stdout, failed.Stdout + failed.Stderr, kept.Stdout + kept.Stderr} {
			c.Silent("what yoi says", []byte(said))
		}
		gone(t)
		c.SilentBelow(y.Root)
		kept.JSON(t, &ev)
		// The workspace has the handles; whose values they were is not there any more.
		y.Run(t, "worker", "spawn", string(ev.AllocationID), "--", "true").Refused(t, 1, policy.CodeSecretUnknown)
		y.OK(t, "ws", "rm", "--discard", string(ev.AllocationID))
		for _, bad := range []string{"file-token=file:" + store + "/none", "x=cmd:exit 3", "x=env:NOT_SET"} {
			y.Run(t, "run", "--repo", repo, "--secret", bad, "--", "true").Refused(t, 125, policy.CodeSecretUnavailable)
		}
		if r := y.Run(t, "run", "--repo", repo, "--secret", "x="+c.Values["file-token"], "--", "true"); r.Code != 125 && r.Code != 2 || strings.Contains(r.Stderr, c.Values["file-token"]) {
			t.Errorf("a value on the command line: exit %d, %s", r.Code, r.Stderr)
		}
	})
}

// parents lets an ordinary user walk to dir.
func parents(t *testing.T, dir string) {
	t.Helper()
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		st, err := os.Stat(d)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(d, st.Mode()|0o055); err != nil {
			t.Fatal(err)
		}
	}
}

// A Worker cannot change what it was given, nor have a core dump of it written.
func TestSecretsCannotBeChanged(t *testing.T) {
	embedded(t, func(t *testing.T, p rig.Place, y rig.Yoi, repo string) {
		y.Env = append(y.Env, "OWN=v")
		script := `cd /run/secrets; for try in 'echo y >x' 'chmod 644 x' 'rm x' 'touch new' 'mv x z' 'ln x /tmp/x' 'mount -o remount,rw /run/secrets' 'umount /run/secrets' 'mount -t tmpfs none /run/secrets'; do (eval "$try") >/dev/null 2>&1 && echo "could: $try"; done; ulimit -c; ulimit -c unlimited 2>/dev/null && ulimit -c; cat x`
		if out := y.OK(t, "run", "--repo", repo, "--secret", "x=env:OWN", "--", "sh", "-c", script); out != "0\nv" {
			t.Errorf("%s", strconv.Quote(out))
		}
	})
}
