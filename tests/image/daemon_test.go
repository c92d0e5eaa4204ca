package image

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	it "yoi.dev/yoi-runtime/cow/layers/imagetest"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

const yoiUser = 64400

// TestDaemons: an image through the API, the unprivileged daemon and the
// privileged helper, and all of it again after both were killed.
func TestDaemons(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "ext4", yoiUser)
	repo := p.Give(t, testenv.RepoSmall(t)).Dir
	machine := rig.Before(t)
	d := rig.NewDaemons(t, p, 0)
	d.HelperEnv = []string{"YOI_LAYERS=" + rig.Program(t, "yoi-layers")}
	d.Start(t)
	ctx := t.Context()
	archive := it.Tar(t, it.OCI(t, busybox(t)))
	img, err := d.Client.ImportImage(ctx, runtime.ImportImageRequest{}, bytes.NewReader(archive))
	if err != nil || img.Name != "busybox-1.35" || img.Layers != 2 {
		t.Fatalf("%+v %v", img, err)
	}
	if again, err := d.Client.ImportImage(ctx, runtime.ImportImageRequest{}, bytes.NewReader(archive)); err != nil || again.ID != img.ID {
		t.Errorf("the same again is %+v %v", again, err)
	}
	if _, err := d.Client.ImportImage(ctx, runtime.ImportImageRequest{Name: "x"}, bytes.NewReader(archive[:len(archive)/2])); !errors.Is(err, policy.CodeImageInvalid) {
		t.Errorf("half an archive: %v", err)
	}
	if _, err := d.Client.AddRepository(ctx, runtime.AddRepositoryRequest{Source: repo}); err != nil {
		t.Fatal(err)
	}
	ws, err := d.Client.CreateWorkspace(ctx, runtime.CreateWorkspaceRequest{
		Repositories: []runtime.RepositoryRequest{{RepositoryID: "small"}}, Sandbox: policy.SandboxPolicy{Root: policy.RootImage(img.Name)},
	})
	if err != nil || ws.RootImage == nil || ws.RootImage.Digest != img.Digest {
		t.Fatalf("%+v %v", ws, err)
	}
	for range 2 {
		if list, err := d.Client.ListImages(ctx); err != nil || len(list) != 1 || list[0].Name != img.Name {
			t.Errorf("listed are %+v %v", list, err)
		}
		if err := d.Client.RemoveImage(ctx, img.Name); !errors.Is(err, policy.CodeImageInUse) {
			t.Errorf("removing it: %v", err)
		}
		w, err := d.Client.SpawnWorker(ctx, runtime.SpawnWorkerRequest{AllocationID: ws.ID, Command: []string{"sh", "-c", look + "; stat -c %u /etc/www"}})
		if err != nil {
			t.Fatal(err)
		}
		if w, err = d.Client.WaitWorker(ctx, w.ID); err != nil || w.Outcome == nil || w.Outcome.ExitCode != 0 {
			t.Errorf("%+v %v", w, err)
		}
		var out strings.Builder
		if _, err := d.Client.WorkerLogs(ctx, w.ID, runtime.LogsRequest{}, &out); err != nil || out.String() != seen+"33\n" {
			t.Errorf("the Worker sees\n%s\n%v", out.String(), err)
		}
		d.KillBoth(t)
		d.Restart(t)
	}
	if _, err := d.Client.RemoveWorkspace(ctx, ws.ID, runtime.RemoveWorkspaceRequest{Discard: true}); err != nil {
		t.Fatal(err)
	}
	if err := d.Client.RemoveImage(ctx, img.Name); err != nil {
		t.Error(err)
	}
	d.Stop(t)
	place{Place: p, y: rig.Yoi{Root: d.Root}}.empty(t)
	machine.Unchanged(t)
}

// TestOneRootTwoWays: what an ordinary user imported, a helper that is root uses
// and removes; what root imported has owners that the user cannot give to files,
// and says so.
func TestOneRootTwoWays(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", yoiUser)
	repo := p.Give(t, testenv.RepoSmall(t)).Dir
	d := rig.NewDaemons(t, p, 0)
	env := []string{"YOI_LAYERS=" + rig.Program(t, "yoi-layers")}
	d.HelperEnv = env
	y := p.Yoi(t)
	y.Root, y.Env = d.Root, append(y.Env, env...)
	user := place{p, y, testenv.Repo{Dir: repo}}
	archive := it.Tar(t, it.OCI(t, busybox(t)))
	for _, driver := range []string{"overlay", "vfs"} {
		y.OK(t, "image", "import", "--driver", driver, "--name", "users-"+driver, user.archive(t, archive))
	}
	d.Start(t)
	ctx := t.Context()
	if _, err := d.Client.AddRepository(ctx, runtime.AddRepositoryRequest{Source: repo}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Client.ImportImage(ctx, runtime.ImportImageRequest{Name: "roots"}, bytes.NewReader(archive)); err != nil {
		t.Fatal(err)
	}
	for name, owner := range map[policy.ImageName]string{"users-overlay": "0\n", "users-vfs": "0\n", "roots": "33\n"} {
		ws, err := d.Client.CreateWorkspace(ctx, runtime.CreateWorkspaceRequest{
			Repositories: []runtime.RepositoryRequest{{RepositoryID: "small"}}, Sandbox: policy.SandboxPolicy{Root: policy.RootImage(name)},
		})
		if err != nil {
			t.Fatal(err)
		}
		w, err := d.Client.SpawnWorker(ctx, runtime.SpawnWorkerRequest{AllocationID: ws.ID, Command: []string{"sh", "-c", look + "; stat -c %u /etc/www; cat /etc/secret"}})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err = d.Client.WaitWorker(ctx, w.ID); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if _, err := d.Client.WorkerLogs(ctx, w.ID, runtime.LogsRequest{}, &out); err != nil || out.String() != seen+owner {
			t.Errorf("%s: the Worker sees\n%s\n%v", name, out.String(), err)
		}
		if _, err := d.Client.RemoveWorkspace(ctx, ws.ID, runtime.RemoveWorkspaceRequest{Discard: true}); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Client.RemoveImage(ctx, "users-vfs"); err != nil {
		t.Error(err)
	}
	d.Stop(t)
	if r := user.run(t, "users-overlay", look).Want(t, 0); r.Stdout != seen {
		t.Errorf("the user's own sees\n%s", r.Stdout)
	}
	user.run(t, "roots", "true").Refused(t, 125, policy.CodeUnsupported)
	d.Start(t)
	for _, name := range []policy.ImageName{"users-overlay", "roots"} {
		if err := d.Client.RemoveImage(ctx, name); err != nil {
			t.Error(err)
		}
	}
	d.Stop(t)
	user.empty(t)
}

// TestCanceled: an import that is given up leaves nothing, whether it is still
// arriving or being unpacked.
func TestCanceled(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", yoiUser)
	d := rig.NewDaemons(t, p, 0)
	d.HelperEnv = []string{"YOI_LAYERS=" + rig.Program(t, "yoi-layers")}
	d.Start(t)
	archive := it.Tar(t, it.OCI(t, busybox(t)))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := d.Client.ImportImage(ctx, runtime.ImportImageRequest{}, io.MultiReader(bytes.NewReader(archive[:len(archive)-100]), stalled{ctx})); !errors.Is(err, policy.CodeCanceled) {
		t.Errorf("still arriving: %v", err)
	}
	for _, after := range []time.Duration{20, 60, 120, 200} {
		ctx, cancel := context.WithTimeout(t.Context(), after*time.Millisecond)
		_, err := d.Client.ImportImage(ctx, runtime.ImportImageRequest{Name: "a"}, bytes.NewReader(archive))
		cancel()
		if err == nil {
			err = d.Client.RemoveImage(t.Context(), "a")
		} else if errors.Is(err, policy.CodeCanceled) {
			err = nil
		}
		if err != nil {
			t.Errorf("after %d ms: %v", after, err)
		}
	}
	// The client hears of its end before the daemon has taken everything back, or
	// is through with it all the same.
	rig.Eventually(t, "nothing is left", func() bool {
		_ = d.Client.RemoveImage(t.Context(), "a")
		entries, err := os.ReadDir(d.Root + "/image-store/images")
		held, herr := rig.Held(d.Root)
		return err == nil && herr == nil && len(entries)+len(held) == 0
	})
	d.Stop(t)
	place{Place: p, y: rig.Yoi{Root: d.Root}}.empty(t)
}

type stalled struct{ ctx context.Context }

func (s stalled) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}
