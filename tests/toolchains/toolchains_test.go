package toolchains

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// tool is one tool chain at work.
type tool struct {
	name string
	// program must exist, on the host's PATH.
	program string
	flags   []string
	// long ones are tried as an ordinary user only.
	long bool
	// make lays out the project in an empty directory.
	make   func(t *testing.T, dir string)
	script string
	// want is the last line of the output.
	want string
}

func files(content map[string]string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		for name, text := range content {
			name = filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
}

var tools = []tool{
	{
		name: "git", program: "git", make: files(map[string]string{"a.txt": "one\n", "b.txt": "two\n"}),
		script: `git switch -q -c base; git switch -q -c topic; echo more >>a.txt; git commit -qam topic; git switch -q base; echo other >>b.txt; git commit -qam other
			git rebase -q base topic; echo dirty >>a.txt; git stash -q; git stash pop -q; git checkout -q a.txt; git worktree add -q /scratch/w base; git gc -q; git fsck
			git log --oneline topic | wc -l`,
		want: "3",
	},
	{
		name: "go build and go test of this project", program: "go", make: ownPackages, long: true,
		script: `export GOFLAGS=-mod=vendor GOPROXY=off GOTOOLCHAIN=local
			go test -vet=off ./policy; go build -o /scratch/x ./policy/mkdiagnostics; /scratch/x /scratch/table; test -s /scratch/table; echo built`,
		want: "built",
	},
	{
		name: "npm ci and a node test", program: "npm", make: npmProject,
		script: `npm ci --offline --no-audit --no-fund >&2; node --test 2>&1 | grep -E '^(# pass|ℹ pass)' | tr -dc 0-9; echo " passed"`,
		want:   "2 passed",
	},
	{
		name: "a C project", program: "gcc",
		make: files(map[string]string{
			"lib.c":  "#include <pthread.h>\nstatic void *f(void *p) { *(int *)p = 42; return 0; }\nint answer(void) { pthread_t t; int n; pthread_create(&t, 0, f, &n); pthread_join(t, 0); return n; }\n",
			"main.c": "#include <stdio.h>\nint answer(void);\nint main(void) { printf(\"answer %d\\n\", answer()); return 0; }\n",
			"Makefile": "CFLAGS = -O2 -g -fPIC -pthread\nall: static shared sanitized\nlib.a: lib.o\n\tar rcs $@ $^\nliba.so: lib.o\n\t$(CC) -shared -o $@ $^ -pthread\n" +
				"static: main.o lib.a\n\t$(CC) -o $@ $^ -pthread\nshared: main.o liba.so\n\t$(CC) -o $@ main.o -L. -la -Wl,-rpath,.\nsanitized: main.c lib.c\n\t$(CC) -g -fsanitize=undefined -o $@ $^ -pthread\ncheck: all\n\t./static && ./shared && ./sanitized\n",
		}),
		script: "make -s -j4 check", want: "answer 42",
	},
	{
		name: "a python virtual environment", program: "/usr/bin/python3",
		make: files(map[string]string{
			"pkg/__init__.py": "def f(): return 'imported'\n",
			"test_pkg.py":     "import unittest, subprocess, multiprocessing, asyncio, tempfile, pkg\nclass T(unittest.TestCase):\n  def test(self):\n    self.assertEqual(pkg.f(), 'imported')\n    with multiprocessing.Pool(2) as p: self.assertEqual(p.map(abs, [-1, -2]), [1, 2])\n    asyncio.run(asyncio.sleep(0))\n",
		}),
		script: `/usr/bin/python3 -m venv --without-pip v; . v/bin/activate; cp -r pkg v/lib/python3*/site-packages/; python -m unittest -q >&2; cd /tmp; python -c 'import sys, pkg; print(pkg.f(), sys.prefix)'`,
		want:   "imported /workspace/project/v",
	},
	{
		name: "java", program: "javac",
		make:   files(map[string]string{"M.java": "import java.util.stream.*;\npublic class M { public static void main(String[] a) throws Exception { Thread t = Thread.ofPlatform(); } }\n"}),
		script: `printf 'public class M { public static void main(String[] a) throws Exception { Thread t = new Thread(() -> System.out.println("java works")); t.start(); t.join(); } }\n' >M.java; javac M.java; java -Xmx64m -cp . M`,
		want:   "java works",
	},
	{
		name: "gdb", program: "gdb", flags: []string{"--seccomp", "debug"},
		make: files(map[string]string{"d.c": "#include <unistd.h>\nint f(int x) { return x + 1; }\nint main(int c, char **v) { if (c > 1) { write(1, \"\\n\", 1); pause(); } return f(41) - 42; }\n"}),
		script: `gcc -g -O0 -o d d.c; gdb -q -nx -batch -ex 'break f' -ex run -ex 'print x' -ex backtrace ./d 2>&1 | grep -q '= 41'
			mkfifo up; ./d wait >up & read l <up; gdb -q -nx -batch -p $! -ex backtrace 2>&1 | grep -q 'main (c=2'; kill $!; echo attached`,
		want: "attached",
	},
	{
		// What an agent's own sandbox does, inside ours (both can only take away).
		name: "a sandbox by seccomp and Landlock", program: "gcc",
		make:   files(map[string]string{"s.c": ownSandbox}),
		script: `gcc -o s s.c; ./s`, want: "confined twice",
	},
	{
		name: "bubblewrap", program: "bwrap", flags: []string{"--seccomp", "nested"}, make: files(map[string]string{"f": "x"}),
		script: `bwrap --unshare-all --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 --dev /dev --tmpfs /tmp --bind . /work --chdir /work sh -c 'echo y >g; test ! -e /scratch; echo nested'`,
		want:   "nested",
	},
	{
		name: "chromium", program: "chromium", flags: []string{"--seccomp", "nested"},
		make:   files(map[string]string{"p.html": "<p id=x></p><script>document.getElementById('x').textContent = 'rendered ' + (6 * 7)</script>"}),
		script: `/usr/lib/chromium/chromium --headless=new --disable-gpu --user-data-dir=/tmp/c --virtual-time-budget=2000 --dump-dom file://$PWD/p.html 2>/tmp/err | grep -o 'rendered 42' || { tail -5 /tmp/err; exit 1; }`,
		want:   "rendered 42",
	},
	{
		name: "cargo", program: "cargo",
		make: files(map[string]string{
			"Cargo.toml":     "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\ndep = { path = \"dep\" }\n",
			"src/main.rs":    "fn main() { println!(\"{}\", std::thread::spawn(dep::f).join().unwrap()); }\n#[test]\nfn t() { assert_eq!(dep::f(), \"cargo works\"); }\n",
			"dep/Cargo.toml": "[package]\nname = \"dep\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
			"dep/src/lib.rs": "pub fn f() -> &'static str { \"cargo works\" }\n",
		}),
		script: `PATH=$PATH:` + rust + `/bin; cargo test --offline -q >&2; cargo run --offline -q`,
		want:   "cargo works",
	},
}

// optional are not among what make setup installs; where they are missing the test
// says so.
var optional = map[string]bool{"javac": true, "cargo": true}

// rust is where rustup's tool chain is shown to the sandbox, which sees of the host
// only what is beneath /usr.
const rust = "/usr/local/games"

// ownPackages is enough of this module to be built and tested by itself.
func ownPackages(t *testing.T, dir string) {
	t.Helper()
	module, err := rig.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"go.mod", "go.sum", "policy", "mounts", "internal/replay", "docs"} {
		to := filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		rig.Command(t, "cp", "-r", filepath.Join(module, p), to)
	}
	// What these packages need of other modules, and nothing else, is vendored.
	list := func(args ...string) []string {
		cmd := exec.Command("go", append([]string{"list"}, args...)...)
		cmd.Dir = module
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(out))
	}
	mod := "module yoi.dev/yoi-runtime\n\ngo " + list("-m", "-f", "{{.GoVersion}}")[0] + "\n"
	vendored, last := "", ""
	lines := list("-deps", "-test", "-f", `{{with .Module}}{{if .Version}}{{.Path}}|{{.Version}}|{{.GoVersion}}|{{$.ImportPath}}|{{$.Dir}}{{end}}{{end}}`, "./policy", "./policy/mkdiagnostics")
	slices.Sort(lines)
	for _, line := range lines {
		f := strings.Split(line, "|")
		if f[0] != last {
			last = f[0]
			mod += "require " + f[0] + " " + f[1] + "\n"
			vendored += "# " + f[0] + " " + f[1] + "\n## explicit; go " + f[2] + "\n"
		}
		vendored += f[3] + "\n"
		to := filepath.Join(dir, "vendor", f[3])
		if err := os.MkdirAll(to, 0o755); err != nil {
			t.Fatal(err)
		}
		rig.Command(t, "sh", "-c", `cp "$1"/*.go "$2"`, "sh", f[4], to)
	}
	files(map[string]string{"go.mod": mod, "vendor/modules.txt": vendored})(t, dir)
	// The packages that need libseccomp's Go half are left out.
	if err := os.RemoveAll(filepath.Join(dir, "policy/seccomp")); err != nil {
		t.Fatal(err)
	}
	rig.Command(t, "chmod", "-R", "u+w", dir)
}

// npmProject has a dependency beside it as a tarball, and its lockfile.
func npmProject(t *testing.T, dir string) {
	t.Helper()
	dep := t.TempDir()
	files(map[string]string{"package.json": `{"name":"dep","version":"1.0.0","main":"i.js"}`, "i.js": "module.exports = n => n + 1\n"})(t, dep)
	files(map[string]string{
		"package.json": `{"name":"project","version":"0.0.1","private":true,"dependencies":{"dep":"file:dep-1.0.0.tgz"}}`,
		"a.test.js": `const test = require("node:test"), assert = require("node:assert"), { Worker } = require("worker_threads"), http = require("http");
test("dependency", () => assert.strictEqual(require("dep")(1), 2));
test("server", (t, done) => { const s = http.createServer((q, r) => r.end("x")).listen(0, "127.0.0.1", () => http.get({ port: s.address().port, host: "127.0.0.1" }, r => { r.resume(); r.on("end", () => { s.close(); done(); }); })); });
`,
		".gitignore": "node_modules\n",
	})(t, dir)
	env := append(os.Environ(), "HOME="+t.TempDir(), "npm_config_offline=true", "npm_config_audit=false", "npm_config_fund=false", "npm_config_update_notifier=false")
	for _, args := range [][]string{{"pack", "--silent", dep}, {"install", "--package-lock-only", "--ignore-scripts"}} {
		cmd := exec.Command("npm", args...)
		cmd.Dir, cmd.Env = dir, env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("npm %q: %v\n%s", args, err, out)
		}
	}
}

func TestToolChains(t *testing.T) {
	testenv.Root(t)
	for _, tool := range tools {
		t.Run(tool.name, func(t *testing.T) {
			if _, err := exec.LookPath(tool.program); err != nil {
				if optional[tool.program] {
					t.Logf("%s is not on this machine: not tried", tool.program)
					return
				}
				t.Fatalf("%s is missing (make setup installs it)", tool.program)
			}
			if tool.program == "cargo" && !showRust(t) {
				return
			}
			dir := filepath.Join(t.TempDir(), "project")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			tool.make(t, dir)
			for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "-A"}, {"commit", "-q", "-m", "project"}} {
				testenv.Git(t, dir, args...)
			}
			for _, uid := range []int{0, rig.Ordinary} {
				if tool.long && uid == 0 {
					continue
				}
				p := rig.NewPlace(t, "disk", uid)
				y := p.Yoi(t)
				src := p.Give(t, testenv.Repo{Dir: dir})
				args := append([]string{"run", "--repo", src.Dir}, tool.flags...)
				r := patiently(t, y.Cmd(append(args, "--", "sh", "-ec", tool.script)...))
				lines := strings.Split(strings.TrimSpace(r.Stdout), "\n")
				if r.Code != 0 || lines[len(lines)-1] != tool.want {
					t.Errorf("uid %d: exit %d, last line not %q\n%s%s", uid, r.Code, tool.want, r.Stdout, r.Stderr)
				}
				rig.Clean(t, y.Root)
			}
		})
	}
}

// patiently runs what compiles a standard library, on a machine that may be busy.
func patiently(t *testing.T, cmd *exec.Cmd) rig.Result {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // its state has the code
	return rig.Result{Args: cmd.Args[1:], Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
}

// showRust lets the sandbox see rustup's tool chain, which lies in a home.
func showRust(t *testing.T) bool {
	t.Helper()
	out, err := exec.Command("rustc", "--print", "sysroot").Output()
	sysroot := strings.TrimSpace(string(out))
	if _, serr := os.Stat(filepath.Join(sysroot, "bin/cargo")); err != nil || serr != nil {
		t.Logf("cargo has no tool chain: not tried")
		return false
	}
	if strings.HasPrefix(sysroot, "/usr") {
		return true
	}
	if err := unix.Mount(sysroot, rust, "", unix.MS_BIND, ""); err != nil { // in this suite's mount namespace
		t.Fatalf("the tool chain cannot be shown: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(rust, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return true
}

// ownSandbox refuses itself uname by seccomp and every new file by Landlock.
const ownSandbox = `
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>
int main(void) {
	uint64_t handled = 1 << 8; /* make regular files */
	int rules = syscall(444, &handled, sizeof handled, 0);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || rules < 0 || syscall(446, rules, 0)) { perror("landlock"); return 1; }
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_uname, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 42),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = { sizeof f / sizeof *f, f };
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p)) { perror("seccomp"); return 1; }
	struct utsname u;
	if (uname(&u) != -1 || errno != 42) return 2;
	if (open("new", O_CREAT | O_WRONLY, 0600) != -1 || errno != EACCES) return 3;
	puts("confined twice");
	return 0;
}
`
