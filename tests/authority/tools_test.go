package authority

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/toolroot"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// everything lists all that is not a directory and that the Worker can name, but for
// the kernel's own and what it may write to.
const everything = `find / \( -path /proc -o -path /dev -o -path /workspace -o -path /tmp -o -path /scratch \) -prune -o ! -type d -print`

// generated is what every root has.
var generated = []string{"/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts", "/etc/gitconfig", "/etc/hostname", "/etc/mtab", "/etc/ld.so.cache", "/etc/ld.so.conf"}

// systems are what the profile system adds.
var systems = []string{"/etc/ssl/", "/etc/pki/", "/etc/mime.types", "/etc/magic", "/etc/protocols", "/etc/services", "/etc/debian_version", "/etc/localtime", "/etc/os-release"}

// TestNothingElseExists: of the host there is what the tools need, whoever asks, and
// each of it can only be read.
func TestNothingElseExists(t *testing.T) {
	tools := []string{"git", "findutils", "stat"}
	closure, err := toolroot.Resolve(tools)
	if err != nil {
		t.Fatal(err)
	}
	embedded(t, func(t *testing.T, p rig.Place, y rig.Yoi, repo string) {
		for _, root := range []string{"minimal", "system"} {
			args := []string{"run", "--repo", repo, "--root", root}
			for _, tool := range tools {
				args = append(args, "--tool", tool)
			}
			out := y.OK(t, append(args, "--", "sh", "-c", everything)...)
			found := strings.Split(strings.TrimSpace(out), "\n")
			for _, f := range found {
				if !allowed(closure, f, root == "system") {
					t.Errorf("%s: %s exists", root, f)
				}
			}
			for _, f := range closure.Files {
				if !slices.Contains(found, f) {
					t.Errorf("%s: %s does not exist", root, f)
				}
			}
			out = y.OK(t, append(args, "--", "sh", "-c", `for p in `+strings.Join(closure.Files, " ")+` /usr /usr/bin /etc; do
	test -w $p && echo "$p can be written"; (: >>$p/x) 2>/dev/null && echo "made $p/x"; (: >>$p) 2>/dev/null && echo "wrote $p"; done; echo end`)...)
			if out != "end\n" {
				t.Errorf("%s: %s", root, out)
			}
		}
	})
}

func allowed(c *toolroot.Closure, f string, system bool) bool {
	if slices.Contains(c.Files, f) || slices.Contains(generated, f) || strings.HasPrefix(f, "/run/yoi/objects/") || f == "/var/tmp" {
		return true
	}
	if slices.ContainsFunc(c.Links, func(l toolroot.Link) bool { return l.Path == f }) || slices.ContainsFunc(c.Trees, func(tr string) bool { return strings.HasPrefix(f, tr+"/") }) {
		return true
	}
	if system && slices.ContainsFunc(systems, func(s string) bool { return strings.HasPrefix(f, s) }) {
		return true
	}
	to, err := os.Readlink(f) // "/bin" and the like, of the host
	return err == nil && !strings.HasPrefix(to, "/") && strings.Count(f, "/") == 1
}

// TestToolsWork: what the named tools are for works with nothing else beside them.
func TestToolsWork(t *testing.T) {
	embedded(t, func(t *testing.T, p rig.Place, y rig.Yoi, repo string) {
		for name, c := range map[string]struct {
			tools  []string
			script string
			want   string
		}{
			"git": {[]string{"git"}, `git status --short; echo x >new; git add new; git commit -qm x; git log --oneline | while read a b; do echo "$b"; break; done; git stash -q; git rebase -q HEAD~1; git gc -q; git fsck`, "x\n"},
			"make and gcc": {[]string{"make", "gcc"}, `printf '#include <stdio.h>\n#include <math.h>\nint main(int c,char**v){printf("%%.0f\\n",sqrt(c*4.0));return 0;}\n' >m.c
printf 'm: m.c\n\t$(CC) -O1 -o $@ $< -lm\n' >Makefile; make -s m && ./m`, "2\n"},
			// A package without imports: the standard library would have to be built for more.
			"go": {[]string{"go"}, `printf 'module m\n' >go.mod; printf 'package m\n\nfunc F() int { return 2 }\n' >m.go; gofmt -l m.go; go build . && go list .`, "m\n"},
		} {
			for _, root := range []string{"minimal", "system"} {
				args := []string{"run", "--repo", repo, "--root", root, "--tool", "sh"}
				for _, tool := range c.tools {
					args = append(args, "--tool", tool)
				}
				if out := y.OK(t, append(args, "--", "sh", "-c", c.script)...); out != c.want {
					t.Errorf("%s, %s: %q", name, root, out)
				}
			}
		}
	})
}

// TestToolsCannotBeTalkedRound: no name that a caller or a repository chooses brings
// another program in.
func TestToolsCannotBeTalkedRound(t *testing.T) {
	embedded(t, func(t *testing.T, p rig.Place, y rig.Yoi, repo string) {
		evil := filepath.Join(p.Dir, "evil")
		if err := os.Mkdir(evil, 0o755); err != nil {
			t.Fatal(err)
		}
		plant := func(name string) {
			if err := os.WriteFile(filepath.Join(evil, name), []byte("#!/bin/sh\necho evil\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		// A caller's PATH with a program of its own has no say in which program it is.
		plant("cat")
		caller := y
		caller.Env = append(slices.Clone(y.Env), "PATH="+evil+":"+os.Getenv("PATH"))
		if out := caller.OK(t, "run", "--repo", "file://"+repo, "--tool", "cat", "--", "cat", "--version"); !strings.HasPrefix(out, "cat (GNU ") {
			t.Errorf("the caller's PATH brings %q", out)
		}
		// Nor has the sandbox's. (The Runtime's own git is the caller's.)
		plant("git")
		run := func(more ...string) rig.Result {
			return y.Run(t, append([]string{"run", "--repo", "file://" + repo, "--tool", "git", "--tool", "coreutils"}, more...)...)
		}
		if out := run("--env", "PATH="+evil+":/workspace/small:/usr/bin:/bin", "--", "git", "--version").Want(t, 0).Stdout; !strings.HasPrefix(out, "git version ") {
			t.Errorf("a hostile PATH brings %q", out)
		}
		script := `
for prog in /usr/bin/perl /usr/bin/python3 /usr/bin/ssh /usr/bin/curl /usr/bin/find /usr/sbin/chroot /bin/mount; do
	test -e $prog && echo "$prog exists"
	$prog --version >/dev/null 2>&1 && echo "$prog runs"
	/lib64/ld-linux-x86-64.so.2 $prog --version >/dev/null 2>&1 && echo "the linker runs $prog"
	cp $prog ./copy 2>/dev/null && echo "$prog can be copied"
done
ln -s /usr/bin/perl ./perl; ./perl -v >/dev/null 2>&1 && echo "a link runs"
PATH=/workspace/small:$PATH perl -v >/dev/null 2>&1 && echo "a link in PATH runs"
LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libssl3.so LD_LIBRARY_PATH=/usr/lib/ssl git --version
cp /usr/bin/git ./mine && ./mine --version
rm -f /usr/bin/git 2>/dev/null; mv /usr/bin/git /usr/bin/x 2>/dev/null; ln -sf /bin/true /usr/bin/git 2>/dev/null; git --version`
		r := run("--", "sh", "-c", script).Want(t, 0)
		lines := strings.Split(strings.TrimSpace(r.Stdout), "\n")
		// Three times git itself. That its copy runs is no promise broken: authority is
		// about which programs exist, not what code runs.
		if len(lines) != 3 || slices.ContainsFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "git version ") }) {
			t.Errorf("inside:\n%s%s", r.Stdout, r.Stderr)
		}
		// A link in the repository to a program of the host's leads nowhere.
		commit := exec.Command("sh", "-c", `ln -s /usr/bin/perl tool && git -c safe.directory='*' add tool && git -c safe.directory='*' -c user.name=x -c user.email=x@x commit -qm link && chown -R --reference=. .`)
		commit.Dir = repo
		if out, err := commit.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		run("--", "./tool", "-v").Refused(t, 127, policy.CodeCommandNotFound)
		run("--", "perl", "-v").Refused(t, 127, policy.CodeCommandNotFound)
		for tool, code := range map[string]policy.Code{
			"nosuch": policy.CodeToolUnknown, "/etc/shadow": policy.CodeToolUnknown, evil + "/git": policy.CodeToolUnknown, "/usr/../etc/shadow": policy.CodePolicyInvalid,
			"../bin/sh": policy.CodePolicyInvalid, "": policy.CodePolicyInvalid, "/": policy.CodePolicyInvalid, "/usr": policy.CodeToolUnknown, "git status": policy.CodePolicyInvalid,
		} {
			y.Run(t, "run", "--repo", "file://"+repo, "--tool", tool, "--", "true").Refused(t, 125, code)
		}
		y.Run(t, "run", "--repo", "file://"+repo, "--root", "image:none", "--tool", "git", "--", "true").Refused(t, 125, policy.CodePolicyInvalid)
	})
}

// TestToolsThroughDaemons: the privileged helper finds the tools out by itself, says
// which they were, and the Runtime's own looks at the workspace have git all the same.
func TestToolsThroughDaemons(t *testing.T) {
	closure, err := toolroot.Resolve([]string{"sh", "cat"})
	if err != nil {
		t.Fatal(err)
	}
	pairs(t, func(_ rig.Place, d *rig.Daemons) {
		// What the daemon's user writes there is believed by nobody but itself.
		write(t, d.Root+"/tools.json", `{"x":{"Files":["/etc/shadow"]}}`, yoiUser)
	}, func(t *testing.T, d *rig.Daemons, repo string) {
		ws := workspace(t, d, repo, policy.SandboxPolicy{Tools: []string{"sh", "cat"}})
		for range 2 {
			w := d.Spawn(t, ws.ID, `echo x >>README.md; cat /etc/shadow; git status; cat /dev/null && echo works`)
			got, out := ended(t, d, w.ID)
			if !strings.HasPrefix(out, "works\n") || !strings.Contains(out, "git: not found") || strings.Contains(out, "root:") {
				t.Errorf("inside: %s", out)
			}
			if got.ToolsDigest != closure.Digest {
				t.Errorf("the evidence has %q, want %q", got.ToolsDigest, closure.Digest)
			}
		}
		st, err := d.Client.StatusWorkspace(t.Context(), ws.ID, runtime.ResultRequest{})
		if err != nil || len(st.Repositories) != 1 {
			t.Errorf("the workspace's status: %+v, %v", st, err)
		}
		remove(t, d, ws.ID)
		_, err = d.Client.AddRepository(t.Context(), runtime.AddRepositoryRequest{Source: repo})
		if err != nil {
			t.Fatal(err)
		}
	})
}
