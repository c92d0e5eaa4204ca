package external

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// clone is the plainest command that does it right.
const clone = "cp -a --reflink=auto /proc/self/fd/$YOI_SOURCE_FD/. /proc/self/fd/$YOI_TARGET_FD/tree"

// configure writes config.toml with a shell script as the command.
func configure(t *testing.T, root string, uid int, script string, more ...string) {
	t.Helper()
	rig.Configure(t, root, uid, fmt.Sprintf("[external]\ncommand = [\"/usr/bin/env\", \"sh\", \"-euc\", %q]\n%s\n", script, strings.Join(more, "\n")))
}

// look prints everything about a tree but its .git, and what git says of it.
const look = `find . -path ./.git -prune -o -printf '%y %m %s %T@ %P -> %l\n' | LC_ALL=C sort
find . -path ./.git -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
git status --porcelain; git write-tree; echo x >>README.md; git status --porcelain; git commit -qam x; git log --format=%s`

// TestExternalMakesTheTree: the result is what a copy is, also by a snapshot.
func TestExternalMakesTheTree(t *testing.T) {
	testenv.Root(t)
	source := testenv.RepoSmall(t)
	rig.EachPlace(t, func(t *testing.T, p rig.Place) {
		repo, y := p.Give(t, source), p.Yoi(t)
		scripts := []string{clone, "cp -a --reflink=auto /run/yoi/source tree"}
		if p.FS == "btrfs" {
			scripts = append(scripts, "btrfs subvolume snapshot /run/yoi/source tree")
		}
		want := ""
		for _, script := range scripts {
			configure(t, y.Root, p.UID, script)
			if want == "" {
				want = y.OK(t, "run", "--repo", repo.Dir, "--strategy", "copy", "--", "sh", "-c", look)
			}
			if got := y.OK(t, "run", "--repo", repo.Dir, "--strategy", "external", "--", "sh", "-c", look); got != want {
				t.Errorf("%s\n got %s\nwant %s", script, got, want)
			}
			if got := y.OK(t, "run", "--repo", repo.Dir, "--strategy", "external", "--scope", "src", "--", "sh", "-c", "git status --porcelain; ls src"); got != "main.c\nutil.c\n" {
				t.Errorf("%s: of a scope %q", script, got)
			}
			rig.Clean(t, y.Root)
		}
	})
}

// confined fails unless the command is as confined as it is meant to be.
const confined = `test $$ != 1; test "$(id -u)" = 1000
grep -q '^CapEff:.*0000000000000000$' /proc/self/status; grep -q '^CapBnd:.*0000000000000000$' /proc/self/status
grep -q '^NoNewPrivs:.*1$' /proc/self/status; grep -q '^Seccomp:.*2$' /proc/self/status
test "$(ls /sys/class/net 2>/dev/null | wc -l)" = 0; test "$(grep -c : /proc/net/dev)" = 1
if touch /run/yoi/source/x 2>/dev/null; then exit 11; fi
if touch /run/yoi/x 2>/dev/null; then exit 12; fi
if ls /root /workspace /home/worker/.ssh 2>/dev/null; then exit 13; fi
if cd /proc/self/fd/$YOI_SOURCE_FD/../../../.. && ls -d etc/passwd.host tmp/place* 2>/dev/null; then exit 14; fi; cd /run/yoi/target
if ln /run/yoi/source/README.md x 2>/dev/null; then exit 15; fi
if mount -t tmpfs none /tmp 2>/dev/null; then exit 16; fi
if mknod d c 1 3 2>/dev/null; then exit 17; fi
test -z "${SECRET_TOKEN:-}"; test "$(printf %s "$YOI_TARGET_ID" | cut -c1-3)" = ws-
case $YOI_SOURCE_ID in small/????????????????????????????????????????) ;; *) exit 18 ;; esac
` + clone

func TestExternalIsConfined(t *testing.T) {
	testenv.Root(t)
	source := testenv.RepoSmall(t)
	for _, uid := range []int{0, rig.Ordinary} {
		p := rig.NewPlace(t, "disk", uid)
		machine := rig.Before(t)
		repo, y := p.Give(t, source), p.Yoi(t)
		configure(t, y.Root, uid, confined)
		r := y.Run(t, "run", "-v", "--repo", repo.Dir, "--strategy", "external", "--", "true")
		if r.Code != 0 {
			t.Errorf("exit %d\n%s", r.Code, r.Stderr)
		}
		rig.Clean(t, y.Root)
		machine.Unchanged(t)
	}
}

// TestAttackExternalResults: every result that is not the tree is refused, and
// nothing of it is left.
func TestAttackExternalResults(t *testing.T) {
	testenv.Root(t)
	source := testenv.RepoSmall(t)
	p := rig.NewPlace(t, "ext4", rig.Ordinary)
	repo, y := p.Give(t, source), p.Yoi(t)
	for name, c := range map[string]struct {
		script string
		code   policy.Code
	}{
		"nothing":          {"true", policy.CodeExternalWrong},
		"a file":           {"echo x >tree", policy.CodeExternalWrong},
		"a link to it":     {"ln -s /run/yoi/source tree", policy.CodeExternalWrong},
		"fails":            {clone + "; exit 3", policy.CodeExternalFailed},
		"is killed":        {clone + "; kill -9 $$", policy.CodeExternalFailed},
		"not found":        {"exec /usr/bin/no-such-program", policy.CodeExternalFailed},
		"another content":  {clone + "; cd tree; touch -r Makefile /tmp/r; printf 'b' | dd of=Makefile conv=notrunc status=none; touch -r /tmp/r Makefile", policy.CodeExternalWrong},
		"longer":           {clone + "; echo >>tree/Makefile; touch -r /run/yoi/source/Makefile tree/Makefile", policy.CodeExternalWrong},
		"newer":            {clone + "; touch tree/README.md", policy.CodeExternalWrong},
		"executable":       {clone + "; chmod +x tree/README.md", policy.CodeExternalWrong},
		"setuid":           {clone + "; chmod 4755 tree/run.sh", policy.CodeExternalWrong},
		"one more":         {clone + "; touch tree/more; touch -r /run/yoi/source tree", policy.CodeExternalWrong},
		"one more in .git": {clone + "; touch tree/.git/hooks-x; touch -r /run/yoi/source/.git tree/.git", policy.CodeExternalWrong},
		"one less":         {clone + "; rm tree/README.md; touch -r /run/yoi/source tree", policy.CodeExternalWrong},
		"another link":     {clone + "; cd tree; ln -sfn /etc/passwd link; touch -hr /run/yoi/source/link link; touch -r /run/yoi/source .", policy.CodeExternalWrong},
		"a FIFO":           {clone + "; rm tree/README.md; mkfifo -m 644 tree/README.md; touch -r /run/yoi/source/README.md tree/README.md; touch -r /run/yoi/source tree", policy.CodeExternalWrong},
		"a whiteout":       {clone + "; rm tree/README.md; { mknod -m 644 tree/README.md c 0 0 && touch -r /run/yoi/source/README.md tree/README.md || :; }; touch -r /run/yoi/source tree", policy.CodeExternalWrong},
		"linked inside":    {clone + "; ln -f tree/README.md kept; touch -r /run/yoi/source tree", policy.CodeExternalWrong},
		"redirected":       {clone + "; setfattr -n user.overlay.redirect -v /etc tree/src || exit 0; touch -r /run/yoi/source/src tree/src", policy.CodeExternalWrong},
		"opaque":           {clone + "; setfattr -n user.overlay.opaque -v y tree/src; touch -r /run/yoi/source/src tree/src", policy.CodeExternalWrong},
		"locked up":        {clone + "; chmod 000 tree/src", policy.CodeExternalWrong},
		"fills the disk":   {clone + "; dd if=/dev/zero of=big bs=1M 2>/dev/null", policy.CodeExternalFailed},
	} {
		configure(t, y.Root, p.UID, c.script)
		r := y.Run(t, "run", "--repo", repo.Dir, "--strategy", "external", "--", "true")
		if r.Code != 125 || r.Diagnostic() != c.code {
			t.Errorf("%s: exit %d, %s, want %s\n%s", name, r.Code, r.Diagnostic(), c.code, r.Stderr)
		}
		if strings.Contains(r.Stderr, p.Dir) || strings.Contains(r.Stderr, "/run/yoi/source") {
			t.Errorf("%s: a path of the host: %s", name, r.Stderr)
		}
	}
	// What stays behind of a command that leaves processes is ended with it.
	configure(t, y.Root, p.UID, "(trap '' TERM HUP; sleep 100; echo late >tree/late) & "+clone)
	y.OK(t, "run", "--repo", repo.Dir, "--strategy", "external", "--", "sh", "-c", "sleep 0.1; test ! -e late")
	rig.Clean(t, y.Root)
	configure(t, y.Root, p.UID, clone+"; while :; do :; done", `time_limit = "1s"`)
	start := time.Now()
	y.Run(t, "run", "--repo", repo.Dir, "--strategy", "external", "--", "true").Refused(t, 125, policy.CodeExternalFailed)
	if d := time.Since(start); d > 30*time.Second {
		t.Errorf("the limit took %v", d)
	}
	rig.Clean(t, y.Root)
}

func TestExternalConfiguration(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", rig.Ordinary)
	repo, y := p.Give(t, testenv.RepoSmall(t)), p.Yoi(t)
	y.Run(t, "run", "--repo", repo.Dir, "--strategy", "external", "--", "true").Refused(t, 125, policy.CodeStrategyUnsupported)
	for _, bad := range []string{
		`command = ["/opt/rift"]`, `command = ["rift"]`, `command = ["/usr/../etc/x"]`, `command = [""]`, `command = "/usr/bin/x"`,
		"command = [\"/usr/bin/x\"]\ntime_limit = \"forever\"", "command = [\"/usr/bin/x\"]\ntime_limit = \"0s\"", "command = [\"/usr/bin/x\"]\nnetwork = \"some\"", `commands = []`,
	} {
		rig.Configure(t, y.Root, p.UID, "[external]\n"+bad+"\n")
		y.Run(t, "run", "--repo", repo.Dir, "--strategy", "external", "--", "true").Refused(t, 125, policy.CodeConfigInvalid)
	}
	configure(t, y.Root, p.UID, "test -e /sys/class/net || test \"$(grep -c : /proc/net/dev)\" -ge 1; "+clone, `network = "host"`)
	y.OK(t, "run", "--repo", repo.Dir, "--strategy", "external", "--", "true")
	rig.Clean(t, y.Root)
}

// TestExternalThroughDaemons: the command is the daemon's configuration, and the
// privileged side runs it in a sandbox like any other.
func TestExternalThroughDaemons(t *testing.T) {
	testenv.Root(t)
	source := testenv.RepoSmall(t)
	for _, c := range []struct {
		fs        string
		helperUID int
	}{{"xfs", 0}, {"btrfs", 0}, {"disk", rig.Ordinary}} {
		p := rig.NewPlace(t, c.fs, rig.Ordinary)
		machine := rig.Before(t)
		d := rig.NewDaemons(t, p, c.helperUID)
		repo := p.Give(t, source)
		configure(t, d.Root, p.UID, clone)
		d.Start(t)
		r, err := d.Client.AddRepository(t.Context(), runtime.AddRepositoryRequest{Source: repo.Dir})
		if err != nil {
			t.Fatal(err)
		}
		ws, err := d.Client.CreateWorkspace(t.Context(), runtime.CreateWorkspaceRequest{
			Strategy: policy.StrategyExternal, Repositories: []runtime.RepositoryRequest{{RepositoryID: r.ID}},
		})
		if err != nil {
			t.Fatal(err, d.Runtimed.Log(), d.Helper.Log())
		}
		if ws.Strategy != policy.StrategyExternal || ws.StrategyReason == "" {
			t.Errorf("%+v", ws)
		}
		other, err := d.Client.CreateWorkspace(t.Context(), runtime.CreateWorkspaceRequest{Strategy: policy.StrategyCopy, Repositories: []runtime.RepositoryRequest{{RepositoryID: r.ID}}})
		if err == nil {
			_, err = d.Client.RemoveWorkspace(t.Context(), other.ID, runtime.RemoveWorkspaceRequest{})
		}
		if err != nil {
			t.Error(err)
		}
		measured(t, d)
		w, err := d.Client.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: ws.ID, Command: []string{"sh", "-c", `test -z "$(git status --porcelain)" && echo x >new && git add new && git commit -qm x`}})
		if err == nil {
			w, err = d.Client.WaitWorker(t.Context(), w.ID)
		}
		if err != nil || w.Outcome == nil || w.Outcome.ExitCode != 0 {
			t.Errorf("%+v %v", w.Outcome, err)
		}
		if _, err := d.Client.RemoveWorkspace(t.Context(), ws.ID, runtime.RemoveWorkspaceRequest{Discard: true}); err != nil {
			t.Error(err)
		}
		d.Stop(t)
		rig.Clean(t, d.Root)
		machine.Unchanged(t)
	}
}

// measured wants what both processes measured in the doctor's table.
func measured(t *testing.T, d *rig.Daemons) {
	t.Helper()
	rep, err := d.Client.Doctor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range rep.Strategies {
		if s.Name != policy.StrategyExternal && s.Name != policy.StrategyCopy {
			continue
		}
		if !s.Possible || len(s.Costs) != 1 || s.Costs[0].Files != 1 || s.Costs[0].Create <= 0 || s.Costs[0].Runs != 1 {
			t.Errorf("%+v", s)
		}
	}
}
