package crash

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	it "yoi.dev/yoi-runtime/cow/layers/imagetest"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// crashImage has two layers, of which other images have the lower one, too.
func crashImage(t testing.TB, ref string) []byte {
	return it.Tar(t, it.OCI(t, it.Image{Ref: ref, Layers: [][]byte{
		it.Layer(t, it.Busybox(t)...), it.Layer(t, it.File("etc/upper", ref, 0o644)),
	}}))
}

// TestImages walks through an import, a run in an image, and a removal. After each
// cut the image is there whole or not at all, and the other image works.
func TestImages(t *testing.T) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	for _, c := range []struct {
		uid    int
		driver string
		runs   stride // a run's points are mostly those of any
	}{{0, "overlay", stride{1, 2}}, {rig.Ordinary, "vfs", stride{2, 2}}} {
		t.Run(rig.Place{FS: c.driver, UID: c.uid}.String(), func(t *testing.T) {
			p := rig.NewPlace(t, "disk", c.uid)
			repo := p.Give(t, small).Dir
			y := p.Yoi(t, tag)
			y.Env = append(y.Env, "YOI_LAYERS="+rig.Program(t, "yoi-layers"))
			file := func(name string) string {
				path := filepath.Join(p.Dir, name+".tar")
				if err := os.WriteFile(path, crashImage(t, name), 0o644); err != nil {
					t.Fatal(err)
				}
				return path
			}
			other, victim := file("other"), file("victim")
			y.OK(t, "image", "import", "--driver", c.driver, other)
			works := func(image string) {
				t.Helper()
				if got := y.OK(t, "run", "--repo", repo, "--image", image, "--", "/bin/cat", "/etc/upper"); got != image {
					t.Errorf("the image %s says %q", image, got)
				}
			}
			run := []string{"run", "--repo", repo, "--image", "victim", "--", "/bin/true"}
			imp := []string{"image", "import", "--driver", c.driver, victim}
			for _, w := range []struct {
				name   string
				before []string
				args   []string
				points stride
			}{
				{"import", nil, imp, every}, {"remove", imp, []string{"image", "rm", "victim"}, every}, {"run", imp, run, c.runs},
			} {
				t.Run(w.name, func(t *testing.T) {
					there := false
					w.points.walk(t, func(t *testing.T, n int) bool {
						if w.before != nil && !there {
							y.OK(t, w.before...)
						}
						machine := rig.Before(t)
						_, killed := cut(t, y, n, w.args...)
						machine.Unchanged(t)
						if otherwise(n) {
							y.OK(t, "gc")
						}
						if w.name == "run" { // which never takes its image away
							works("victim")
							rig.Chained(t, y.Root)
							there = true
							return killed
						}
						// A removal that was cut off is one: whoever looks before it is finished
						// sees the image, and whoever uses it finishes it.
						y.OK(t, "gc")
						r := y.Run(t, "image", "show", "victim")
						if r.Code == 0 {
							works("victim")
							y.OK(t, "image", "rm", "victim")
						} else {
							r.Refused(t, 1, policy.CodeImageUnknown)
						}
						works("other")
						y.OK(t, "gc")
						storeHolds(t, y.Root, c.driver, 2)
						return killed || n < 10 // a removal has few points
					})
				})
			}
			y.OK(t, "gc")
			y.OK(t, "image", "rm", "victim") // no cut run holds it any more
			storeHolds(t, y.Root, c.driver, 2)
			y.OK(t, "image", "rm", "other")
			storeHolds(t, y.Root, c.driver, 0)
			rig.Clean(t, y.Root)
		})
	}
}

// storeHolds counts the layers on the disk, and the images in the ledger.
func storeHolds(t *testing.T, root, driver string, layers int) {
	t.Helper()
	pattern := map[string]string{"overlay": "overlay/*/diff", "vfs": "vfs/dir/*"}[driver]
	found, err := filepath.Glob(filepath.Join(root, "image-store", "[lo]*e[rd]*", pattern))
	if err != nil || len(found) != layers {
		t.Errorf("the store holds %d layers, not %d: %v", len(found), layers, err)
	}
	records, err := os.ReadDir(filepath.Join(root, "image-store/images"))
	if errors.Is(err, os.ErrNotExist) { // cut off before the first import
		err = nil
	}
	if err != nil || len(records) != min(layers, 1) {
		t.Errorf("%d image records: %v", len(records), err)
	}
	held, err := rig.Held(root)
	if err != nil || len(held) != min(layers, 1) {
		t.Errorf("the ledger holds %+v, %v", held, err)
	}
}

// TestImagesDaemons walks through an import, a workspace on the image and both
// removals with two processes, cutting one of them off.
func TestImagesDaemons(t *testing.T) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	// The helper's points between import and removal are TestDaemons', too.
	for victim, points := range map[string]stride{"runtimed": every, "helper": {1, 2}} {
		t.Run(victim, func(t *testing.T) {
			p := rig.NewPlace(t, "disk", yoiUser)
			repo := p.Give(t, small).Dir
			d := rig.NewDaemons(t, p, 0, tag)
			layers := "YOI_LAYERS=" + rig.Program(t, "yoi-layers")
			d.HelperEnv = []string{layers}
			d.Start(t)
			if _, err := d.Client.AddRepository(t.Context(), runtime.AddRepositoryRequest{Source: repo}); err != nil {
				t.Fatal(err)
			}
			d.Stop(t)
			archive := crashImage(t, "victim")
			points.walk(t, func(t *testing.T, n int) bool {
				machine := rig.Before(t)
				if victim == "helper" {
					d.HelperEnv = []string{layers, crashAt(n)}
				} else {
					d.RuntimedEnv = []string{crashAt(n)}
				}
				if d.TryStart(t) {
					imageLife(t.Context(), d, archive)
				}
				killed := d.Died()
				switch {
				case !killed:
					killed = d.End(t)
				case otherwise(n):
					d.KillBoth(t)
				}
				d.HelperEnv, d.RuntimedEnv = []string{layers}, nil
				d.Restart(t)
				(&life{d: d}).end(t)
				switch err := d.Client.RemoveImage(t.Context(), "victim"); {
				case err == nil, errors.Is(err, policy.CodeImageUnknown):
				default:
					t.Errorf("the image cannot be removed: %v\n%s", err, d.Runtimed.Log())
				}
				d.Stop(t)
				storeHolds(t, d.Root, "overlay", 0)
				rig.Clean(t, d.Root)
				machine.Unchanged(t)
				return killed
			})
		})
	}
}

// imageLife goes as far as it can.
func imageLife(ctx context.Context, d *rig.Daemons, archive []byte) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	img, err := d.Client.ImportImage(ctx, runtime.ImportImageRequest{}, bytes.NewReader(archive))
	if err != nil {
		return
	}
	ws, err := d.Client.CreateWorkspace(ctx, runtime.CreateWorkspaceRequest{
		Repositories: []runtime.RepositoryRequest{{RepositoryID: "small"}}, Sandbox: policy.SandboxPolicy{Root: policy.RootImage(img.Name)},
	})
	if err != nil {
		return
	}
	if w, err := d.Client.SpawnWorker(ctx, runtime.SpawnWorkerRequest{AllocationID: ws.ID, Command: []string{"/bin/true"}}); err == nil {
		_, _ = d.Client.WaitWorker(ctx, w.ID) // may be cut off
	}
	if _, err = d.Client.RemoveWorkspace(ctx, ws.ID, runtime.RemoveWorkspaceRequest{Discard: true}); err != nil {
		return
	}
	_ = d.Client.RemoveImage(ctx, img.Name) // may be cut off
}
