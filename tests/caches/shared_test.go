package caches

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// lockedRepo is a repository with a lockfile.
func lockedRepo(t *testing.T) testenv.Repo {
	t.Helper()
	return testenv.Commit(t, testenv.RepoSmall(t), "lock", map[string]*testenv.Entry{
		"deps.lock": {Data: "1\n"}, ".gitignore": {Data: "deps\n"},
	})
}

// entries are the complete entries of a Runtime root's dependency caches.
func entries(root string) int {
	found, _ := filepath.Glob(filepath.Join(root, "build-cache/deps/*/*.json"))
	return len(found)
}

// TestDaemonPair: a helper that is root and a daemon that is not share the cache of
// one user, with modes that neither could write; without the operator's word
// nobody publishes.
func TestDaemonPair(t *testing.T) {
	testenv.Root(t)
	const daemon = 64400
	for _, helper := range []int{0, daemon} {
		t.Run("helper "+strconv.Itoa(helper), func(t *testing.T) {
			p := rig.NewPlace(t, "disk", daemon)
			machine := rig.Before(t)
			d := rig.NewDaemons(t, p, helper)
			config := filepath.Join(d.Root, "config.toml")
			write(t, config, "[cache]\nallow_publish = true\nshared_max_bytes = 1\n")
			if err := os.Chown(config, daemon, daemon); err != nil {
				t.Fatal(err)
			}
			d.Start(t)
			repo, err := d.Client.AddRepository(t.Context(), runtime.AddRepositoryRequest{
				Source:  p.Give(t, lockedRepo(t)).Dir,
				Options: policy.RepositoryOptions{Cache: []policy.DependencyCache{{Path: "deps", Key: []string{"deps.lock"}}}},
			})
			if err != nil {
				t.Fatal(err)
			}
			work := func(script string, publish bool) (policy.AllocationID, runtime.Evidence) {
				t.Helper()
				ws, err := d.Client.CreateWorkspace(t.Context(), runtime.CreateWorkspaceRequest{
					Repositories: []runtime.RepositoryRequest{{RepositoryID: repo.ID}}, Sandbox: policy.SandboxPolicy{BuildCache: true, PublishCaches: publish},
				})
				if err != nil {
					t.Fatal(err)
				}
				w, err := d.Client.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: ws.ID, Command: []string{"sh", "-c", script}})
				if err == nil {
					w, err = d.Client.WaitWorker(t.Context(), w.ID)
				}
				if err != nil || w.Outcome == nil || w.Outcome.ExitCode != 0 {
					t.Fatalf("%q: %v %+v\n%s", script, err, w.Outcome, d.Helper.Log())
				}
				ev, err := d.Client.WorkspaceEvidence(t.Context(), ws.ID)
				if err != nil {
					t.Fatal(err)
				}
				return ws.ID, ev
			}
			remove := func(id policy.AllocationID) {
				t.Helper()
				if _, err := d.Client.RemoveWorkspace(t.Context(), id, runtime.RemoveWorkspaceRequest{Discard: true}); err != nil {
					t.Error(err)
				}
			}
			id, _ := work("mkdir -p deps/ro && echo x >deps/ro/f && chmod 0444 deps/ro/f && chmod 0555 deps/ro && echo built >/cache/b", true)
			rig.Eventually(t, "the caches are published", func() bool { return entries(d.Root) == 1 })
			remove(id)
			id, ev := work("cat deps/ro/f /cache/b && chmod 0755 deps/ro && rm deps/ro/f && rm -r deps", false)
			if len(ev.Caches) != 2 || !ev.Caches[0].Warm || !ev.Caches[1].Warm {
				t.Errorf("the second workspace's caches: %+v", ev.Caches)
			}
			rep, err := d.Client.GC(t.Context(), runtime.GCRequest{})
			if err != nil || rep.InUse < 2 || entries(d.Root) != 1 {
				t.Errorf("gc under a workspace that stands on a cache: %+v %v, %d entries", rep, err, entries(d.Root))
			}
			remove(id)
			dry, err := d.Client.GC(t.Context(), runtime.GCRequest{DryRun: true, KeepCacheBytes: 1})
			if err != nil || entries(d.Root) != 1 {
				t.Errorf("gc --dry-run: %+v %v, %d entries are left", dry, err, entries(d.Root))
			}
			if rep, err = d.Client.GC(t.Context(), runtime.GCRequest{KeepCacheBytes: 1}); err != nil || entries(d.Root) != 0 {
				t.Errorf("gc: %+v %v, %d entries are left", rep, err, entries(d.Root))
			}
			// A pristine tree, the dependency cache, the build cache.
			if len(rep.Items) != 3 || !slices.Equal(dry.Items, rep.Items) {
				t.Errorf("gc said that it would remove %+v, and removed %+v", dry.Items, rep.Items)
			}
			d.Stop(t)
			rig.Clean(t, d.Root)
			machine.Unchanged(t)
		})
	}
}

// TestConcurrent: many commands fill and use one cache while gc evicts it again and
// again. Each sees it whole or not at all.
func TestConcurrent(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "ext4", 0)
	repo := p.Give(t, lockedRepo(t)).Dir
	y := p.Yoi(t)
	args := []string{"run", "--json", "--repo", repo, "--cache", "deps=deps.lock", "--publish-caches", "--", "sh", "-c",
		`if [ -e deps ]; then test "$(cat deps/* | wc -l)" = 200; else mkdir deps; for i in $(seq 200); do echo $i >deps/$i; done; fi`}
	y.OK(t, args...)
	write(t, filepath.Join(y.Root, "config.toml"), "[cache]\nshared_max_bytes = 1\n")
	// In each round gc starts beside two commands, which start a little later than in
	// the round before: first both are on the cache when gc looks, in the end neither.
	evicted, busy := 0, 0
	for round := range 20 {
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				time.Sleep(time.Duration(round) * 5 * time.Millisecond)
				y.Run(t, args...).Want(t, 0)
			})
		}
		if round == 19 {
			wg.Wait() // nothing stands on the cache: now gc must take it
		}
		var rep runtime.GCReport
		r := y.Run(t, "gc", "--json")
		wg.Wait()
		if r.Code == 1 && r.Diagnostic() == policy.CodeLedgerBusy {
			busy++
			continue // two recoveries at once: the other does it
		}
		r.Want(t, 0).JSON(t, &rep)
		for _, i := range rep.Items {
			if i.Kind == "shared_cache" {
				evicted++
			}
		}
	}
	t.Logf("gc evicted %d times, and was busy %d times", evicted, busy)
	if evicted == 0 {
		t.Error("gc evicted nothing")
	}
	rig.Clean(t, y.Root)
}

// TestHostileCache: what a trusted Worker leaves in place of a directory, or in it,
// leads nowhere and stops nothing.
func TestHostileCache(t *testing.T) {
	testenv.Root(t)
	repo := lockedRepo(t)
	for _, uid := range []int{0, rig.Ordinary} {
		p := rig.NewPlace(t, "ext4", uid)
		given := p.Give(t, repo).Dir
		for _, c := range []struct{ name, script, next string }{
			{"a link", `ln -s /etc deps`, `test ! -e deps && test ! -L deps`},
			{"a fifo", `mkfifo deps`, `test ! -e deps`},
			{"a link above", `ln -s /etc sub`, `true`},
			{"links inside", `mkdir deps; ln -s /etc/passwd deps/p; ln -s ../../../../../../etc deps/up; ln -s deps deps/loop`, `test "$(readlink deps/p)" = /etc/passwd && test -L deps/up`},
			{"specials inside", `mkdir deps; mkfifo deps/pipe; : >deps/f; chmod 6777 deps/f; ln deps/f deps/g; setfattr -n user.overlay.opaque -v y deps 2>/dev/null; true`, `test ! -e deps/pipe && test deps/f -ef deps/g`},
			{"unreadable inside", `mkdir -p deps/d; : >deps/d/f; chmod 0 deps/d`, `true`},
			{"deep", `mkdir deps; cd deps; for i in $(seq 300); do mkdir 0123456789 && cd -P 0123456789; done; echo bottom >f`, `cd deps; for i in $(seq 300); do cd -P 0123456789 || exit 1; done; grep -q bottom f`},
		} {
			t.Run(fmt.Sprintf("%s/%d", c.name, uid), func(t *testing.T) {
				y := p.Yoi(t)
				y.Root = filepath.Join(p.Dir, strings.ReplaceAll(c.name, " ", "-"))
				y.Run(t, "run", "--repo", given, "--cache", "deps=deps.lock", "--publish-caches", "--", "sh", "-c", c.script).Want(t, 0)
				rig.Clean(t, y.Root)
				y.Run(t, "run", "--repo", given, "--cache", "deps=deps.lock", "--", "sh", "-c", c.next).Want(t, 0)
				rig.Clean(t, y.Root)
			})
		}
	}
}

// TestFullDisk: a cache that does not fit is not there, the command's own end is
// untouched, and the next attempt with room succeeds.
func TestFullDisk(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlaceOf(t, "ext4", 0, 64)
	repo := p.Give(t, lockedRepo(t)).Dir
	y := p.Yoi(t)
	publish := []string{"run", "--repo", repo, "--cache", "deps=deps.lock", "--publish-caches", "--build-cache", "--", "sh", "-c",
		"mkdir deps && head -c 16000000 /dev/urandom >deps/big && echo x >/cache/x"}
	y.OK(t, "run", "--repo", repo, "--", "true")
	rig.Command(t, "sh", "-c", `free=$(($(stat -f -c '%a * %S' "$1"))); head -c $((free - 24000000)) /dev/zero >"$1/filler"`, "sh", p.Dir)
	r := y.Run(t, publish...).Want(t, 0)
	if !strings.Contains(r.Stderr, "full") || entries(y.Root) != 0 {
		t.Errorf("%d entries\n%s", entries(y.Root), r.Stderr)
	}
	rig.Clean(t, y.Root)
	if err := os.Remove(filepath.Join(p.Dir, "filler")); err != nil {
		t.Fatal(err)
	}
	y.OK(t, publish...)
	if entries(y.Root) != 1 {
		t.Error("not published with room enough")
	}
	rig.Clean(t, y.Root)
}
