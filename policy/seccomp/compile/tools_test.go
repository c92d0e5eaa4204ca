//go:build cgo

package compile

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// What people run in the sandbox must not notice the filter. sh sets up, so
// each script is confined from its first call on.
var tools = []struct {
	name, needs, script, want string
	profiles                  []policy.SeccompProfile
}{
	{"git", "git", `
		export HOME=$PWD GIT_CONFIG_NOSYSTEM=1
		git init -q r && cd r && git config user.email a@b && git config user.name n
		seq 1000 >f && git add f && git commit -qm one && seq 1001 >f && git commit -qam two
		git checkout -qb side && git stash list && git gc -q && git worktree add -q ../w main 2>/dev/null || git worktree add -q ../w -b other
		git fsck && git log --oneline | wc -l`, "2", nil},
	{"make and gcc", "gcc", `
		printf 'int puts(const char*);int main(void){puts("built");return 0;}' >a.c
		printf 'a: a.c\n\tgcc -O2 -o a a.c\n' >Makefile
		make -s -j2 a && ./a`, "built", nil},
	{"threads and subprocesses in python", "python3", `
		python3 -c '
import threading, subprocess, tempfile, multiprocessing, os, socket, select, mmap
t = [threading.Thread(target=lambda: sum(range(1000))) for _ in range(8)]
[x.start() for x in t]; [x.join() for x in t]
a, b = socket.socketpair(); a.send(b"x"); b.recv(1)
assert subprocess.run(["true"]).returncode == 0
p = multiprocessing.Process(target=int); p.start(); p.join(); assert p.exitcode == 0
with tempfile.NamedTemporaryFile() as f: os.sendfile(f.fileno(), f.fileno(), 0, 0)
print("python works")'`, "python works", nil},
	{"node", "node", `
		cat >n.js <<-'J'
		const { Worker } = require("worker_threads"), fs = require("fs"), cp = require("child_process");
		fs.watch(".").close();
		const w = new Worker("require('fs').readdirSync('.')", { eval: true });
		w.on("exit", c => cp.execFile("true", e => console.log(e || c ? "failed" : "node works")));
		J
		node n.js`, "node works", nil},
	{"a server on loopback", "node", `
		cat >s.js <<-'J'
		const http = require("http");
		const s = http.createServer((q, r) => r.end("served")).listen(0, "127.0.0.1", () =>
			http.get({ port: s.address().port, host: "127.0.0.1" }, r => { r.pipe(process.stdout); r.on("end", () => s.close()); }));
		J
		node s.js`, "served", []policy.SeccompProfile{policy.SeccompDefault, policy.SeccompDebug, policy.SeccompNested, policy.SeccompAudit}},
	{"go build", "go", `
		export GOCACHE=$PWD/cache GOFLAGS= GO111MODULE=on HOME=$PWD
		printf 'module m\ngo 1.21\n' >go.mod
		printf 'package main\nimport ("fmt";"os/exec")\nfunc main(){ fmt.Println("go works", exec.Command("true").Run()) }' >m.go
		go build -o m . && ./m`, "go works <nil>", []policy.SeccompProfile{policy.SeccompDefault, policy.SeccompStrict}},
	{"gdb", "gdb", `
		printf 'int f(int x){return x+1;}int main(void){return f(41)-42;}' >d.c && gcc -g -O0 -o d d.c
		gdb -q -nx -batch -ex 'break f' -ex run -ex 'print x' ./d 2>&1 | grep '= 41' && echo gdb works`, "gdb works",
		[]policy.SeccompProfile{policy.SeccompDebug}},
	{"bubblewrap", "bwrap", `
		bwrap --unshare-user --unshare-pid --unshare-ipc --ro-bind / / --proc /proc --dev /dev sh -c 'echo nested works'`, "nested works",
		[]policy.SeccompProfile{policy.SeccompNested}},
}

func TestTools(t *testing.T) {
	testenv.Root(t)
	for _, tool := range tools {
		profiles := tool.profiles
		if profiles == nil {
			profiles = []policy.SeccompProfile{policy.SeccompDefault, policy.SeccompStrict, policy.SeccompDebug, policy.SeccompNested, policy.SeccompAudit}
		}
		if _, err := exec.LookPath(tool.needs); err != nil {
			t.Fatalf("%s is missing (make setup installs it)", tool.needs)
		}
		for _, p := range profiles {
			t.Run(tool.name+" under "+string(p), func(t *testing.T) {
				cmd := confined(t, p, "exec", "/bin/sh", "-ec", tool.script)
				cmd.Env = append(cmd.Env, "LANG=C.UTF-8")
				out, err := cmd.CombinedOutput()
				lines := strings.Split(strings.TrimSpace(string(out)), "\n")
				if err != nil || strings.TrimSpace(lines[len(lines)-1]) != tool.want {
					t.Errorf("%v, last line not %q:\n%s", err, tool.want, out)
				}
			})
		}
	}
}

// The other way round: without its profile the debugger and the nested sandbox
// are refused, which shows that the filter is there at all.
func TestToolsThatNeedMore(t *testing.T) {
	testenv.Root(t)
	for script, why := range map[string]string{
		"unshare -U true":              "user namespaces",
		"strace -o /dev/null true":     "ptrace",
		"bwrap --ro-bind / / true":     "mounts",
		"setarch -R true":              "ADDR_NO_RANDOMIZE",
		"mount -t tmpfs none /mnt":     "mount",
		"hostname somewhere-else":      "sethostname",
		"chroot / true":                "chroot",
		"dmesg -S":                     "syslog",
		"date -s '2001-01-01' && exit": "the clock",
	} {
		cmd := confined(t, policy.SeccompDefault, "exec", "/bin/sh", "-ec", script)
		cmd.Env = append(os.Environ(), cmd.Env...)
		if strings.HasPrefix(script, "hostname") || strings.HasPrefix(script, "date") {
			// Where the filter failed to stop these, no_new_privs and this must.
			cmd.Args[len(cmd.Args)-1] = "setpriv --bounding-set=-all --inh-caps=-all sh -ec \"" + script + "\""
		}
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("%s: %q succeeded:\n%s", why, script, out)
		}
	}
}
