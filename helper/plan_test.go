package helper

import (
	"os"
	"slices"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/cow/layers"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// pathSources names what a plan asks for without touching anything.
type pathSources struct{ asked []string }

func (p *pathSources) source(rel string, attr mounts.Attr) (mounts.Source, error) {
	p.asked = append(p.asked, rel)
	return mounts.Source{Path: "/root-of-runtime", Beneath: rel}, nil
}

func (p *pathSources) direct(dir *os.File, attr mounts.Attr) (mounts.Source, error) {
	return mounts.Source{Path: "/direct"}, nil
}

func (p *pathSources) image(rel string, owned bool) (mounts.Source, error) {
	return p.source(rel, mounts.Attr{})
}

const testTree = "0123456789012345678901234567890123456789"

func planOf(t *testing.T, req LaunchRequest, direct ...*os.File) (map[string]mounts.Op, []string) {
	t.Helper()
	host := &hostRoot{links: map[string]string{"/bin": "usr/bin"}, dirs: []string{"/usr"}, files: make(map[string]cachedFile)}
	src := &pathSources{}
	plan, err := buildPlan(req, host, direct, src)
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Validate(); err != nil {
		t.Fatalf("the plan is refused: %v", err)
	}
	byTarget := make(map[string]mounts.Op)
	for _, op := range plan.Ops {
		if _, twice := byTarget[op.Where()]; twice {
			t.Errorf("%s is made twice", op.Where())
		}
		byTarget[op.Where()] = op
	}
	return byTarget, src.asked
}

func launchOf(strategy policy.StrategyName, key string) LaunchRequest {
	return LaunchRequest{
		WorkerID: "wk-1", AllocationID: "ws-1", Root: policy.RootSystem,
		Repositories: []RepositoryTree{{RepositoryID: "app", TreeKey: key, Strategy: strategy}},
	}
}

func TestPlanNamesOnlyTheAllocation(t *testing.T) {
	for _, s := range []policy.StrategyName{policy.StrategyReflink, policy.StrategyBtrfsSnapshot, policy.StrategyCopy, policy.StrategyGitWorktree} {
		ops, asked := planOf(t, launchOf(s, testTree))
		want := []string{"execution-workspaces/ws-1", "execution-workspaces/ws-1", "repository-cache/git/app/bare.git/objects"}
		slices.Sort(asked)
		if !slices.Equal(asked, want) {
			t.Errorf("%s asks for %q, want %q", s, asked, want)
		}
		objects := ops["/run/yoi/objects/app"].(mounts.Overlay)
		if !objects.Attr.ReadOnly || !objects.Attr.NoExec || objects.Data != (mounts.Source{}) {
			t.Errorf("%s: the cache's objects are mounted %+v", s, objects)
		}
		ws := ops["/workspace/app"].(mounts.Overlay)
		if ws.Attr.ReadOnly || !ws.Attr.NoSuid || !ws.Attr.NoDev || ws.Upper != "root/app" || ws.Work != "mounts/.work/app" {
			t.Errorf("%s: the workspace is mounted %+v", s, ws)
		}
		usr := ops["/usr"].(mounts.Bind)
		if !usr.Attr.ReadOnly || !usr.Attr.NoSuid || !usr.Attr.NoDev || !usr.Recursive {
			t.Errorf("%s: /usr is mounted %+v", s, usr)
		}
	}
}

func TestPlanOverlay(t *testing.T) {
	ops, _ := planOf(t, launchOf(policy.StrategyOverlay, testTree))
	o := ops["/workspace/app"].(mounts.Overlay)
	if len(o.Lower) != 1 || o.Lower[0].Beneath != "repository-cache/git/app/trees/"+testTree || o.Data.Beneath != "execution-workspaces/ws-1/mounts/app" {
		t.Fatalf("overlay of %+v", o)
	}
}

// TestPlanBindsNothingOfTheRuntimeRoot: a bind mount's path on the host can be
// read in /proc/self/mountinfo.
func TestPlanBindsNothingOfTheRuntimeRoot(t *testing.T) {
	for _, s := range []policy.StrategyName{policy.StrategyReflink, policy.StrategyOverlay, policy.StrategyGitWorktree} {
		ops, _ := planOf(t, launchOf(s, testTree))
		for target, op := range ops {
			if b, ok := op.(mounts.Bind); ok && b.Source.Beneath != "" {
				t.Errorf("%s: %s is a bind mount of %s", s, target, b.Source.Beneath)
			}
		}
	}
}

func TestPlanReadOnlyLook(t *testing.T) {
	req := launchOf(policy.StrategyCopy, testTree)
	req.ReadOnly = true
	ops, _ := planOf(t, req)
	if !ops["/workspace/app"].(mounts.Overlay).Attr.ReadOnly {
		t.Fatal("the workspace is writable")
	}
}

func TestPlanMinimalHasNoHostDirectories(t *testing.T) {
	req := launchOf(policy.StrategyCopy, testTree)
	req.Root = policy.RootMinimal
	ops, _ := planOf(t, req)
	for target, op := range ops {
		if b, ok := op.(mounts.Bind); ok && b.Source.Beneath == "" {
			t.Errorf("%s shows the host's %s", target, b.Source.Path)
		}
	}
}

func TestPlanCoversProc(t *testing.T) {
	ops, _ := planOf(t, launchOf(policy.StrategyCopy, testTree))
	for _, p := range []string{"/proc/kcore", "/proc/keys", "/proc/timer_list"} {
		if _, ok := ops[p].(mounts.Mask); !ok {
			t.Errorf("%s is not covered", p)
		}
	}
	for _, p := range []string{"/proc/sys", "/proc/sysrq-trigger"} {
		if _, ok := ops[p].(mounts.ReadOnlyPath); !ok {
			t.Errorf("%s is writable", p)
		}
	}
}

func TestPlanNeedsTheDirectDescriptor(t *testing.T) {
	host := &hostRoot{files: make(map[string]cachedFile)}
	_, err := buildPlan(launchOf(policy.StrategyDirect, ""), host, nil, &pathSources{})
	if policy.AsDiagnostic(err) == nil || !strings.Contains(err.Error(), "was not given") {
		t.Fatalf("err = %v", err)
	}
}

// An overlay that is not volatile syncs the whole file system when it ends; one
// that is makes the Worker's fsync(2) do nothing.
func TestPlanVolatile(t *testing.T) {
	for _, s := range []policy.StrategyName{policy.StrategyReflink, policy.StrategyOverlay} {
		for _, volatile := range []bool{false, true} {
			req := launchOf(s, testTree)
			req.Volatile = volatile
			ops, _ := planOf(t, req)
			if got := ops["/workspace/app"].(mounts.Overlay).Volatile; got != volatile {
				t.Errorf("%s: the workspace's overlay has volatile %v, not %v", s, got, volatile)
			}
			if !ops["/scratch"].(mounts.Overlay).Volatile {
				t.Errorf("%s: scratch is synced", s)
			}
		}
	}
}

// A look goes on beside a live Worker and other looks, so it may have nothing of
// the workspace as an upper layer.
func TestPlanOfALook(t *testing.T) {
	for s, want := range map[policy.StrategyName][]string{
		policy.StrategyOverlay: {"execution-workspaces/ws-1/mounts/app/upper", "repository-cache/git/app/trees/" + testTree,
			"repository-cache/git/app/bare.git/objects", "repository-cache/git/app/trees/" + testTree + "/.git"},
		policy.StrategyReflink: {"execution-workspaces/ws-1/root/app", "execution-workspaces/ws-1/index/app", "repository-cache/git/app/bare.git/objects"},
	} {
		req := launchOf(s, testTree)
		req.ReadOnly = true
		ops, asked := planOf(t, req)
		slices.Sort(asked)
		slices.Sort(want)
		if !slices.Equal(asked, want) {
			t.Errorf("%s: asks for %q, want %q", s, asked, want)
		}
		for target, op := range ops {
			if o, ok := op.(mounts.Overlay); ok && (o.Data != (mounts.Source{}) || !o.Attr.ReadOnly) {
				t.Errorf("%s: %s can be written to", s, target)
			}
		}
		if _, ok := ops["/scratch"].(mounts.Tmpfs); !ok {
			t.Errorf("%s: the Worker's scratch is mounted", s)
		}
	}
}

func TestPlanImage(t *testing.T) {
	names := []string{strings.Repeat("a", 64), strings.Repeat("b", 64)}
	req := launchOf(policy.StrategyOverlay, testTree)
	req.Root, req.Image = policy.RootImage("tools"), &ImageRoot{ID: "im-1", Driver: policy.ImageOverlay, Layers: names}
	if err := req.validateRoot(); err != nil {
		t.Fatal(err)
	}
	host := &hostRoot{links: map[string]string{"/bin": "usr/bin"}, dirs: []string{"/usr"}, files: make(map[string]cachedFile)}
	for driver, want := range map[policy.ImageDriver][]string{
		policy.ImageOverlay: {"image-store/layers/overlay/" + names[1] + "/diff", "image-store/layers/overlay/" + names[0] + "/diff"},
		policy.ImageVFS:     {"image-store/layers/vfs/dir/" + names[1]},
	} {
		req.Image.Driver = driver
		plan, err := buildPlan(req, host, nil, &pathSources{})
		if err != nil {
			t.Fatal(err)
		}
		if err := plan.Validate(); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range plan.Layers {
			got = append(got, l.Beneath)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: the layers are %q, want %q", driver, got, want)
		}
		made := make(map[string]mounts.Op)
		for _, op := range plan.Ops {
			made[op.Where()] = op
		}
		if f, ok := made["/etc/resolv.conf"].(mounts.File); !ok || len(f.Content) != 0 {
			t.Errorf("without a network /etc/resolv.conf is %+v", made["/etc/resolv.conf"])
		}
		req.Image.Owned = true
		if plan, err := buildPlan(req, host, nil, &pathSources{}); err != nil || !strings.HasPrefix(plan.Layers[0].Beneath, "image-store/owned/") {
			t.Errorf("an owned image: %+v %v", plan.Layers, err)
		}
		req.Image.Owned = false
		for _, at := range []string{"/usr", "/bin", "/etc/ld.so.cache"} {
			if made[at] != nil {
				t.Errorf("the host's %s is in an image's sandbox", at)
			}
		}
		for _, at := range []string{"/etc/passwd", "/etc/group", "/proc", "/dev", "/tmp", "/workspace/app", "/scratch"} {
			if made[at] == nil {
				t.Errorf("%s is left to the image", at)
			}
		}
	}
	for name, change := range map[string]func(*LaunchRequest){
		"an image without a profile": func(r *LaunchRequest) { r.Root = policy.RootSystem },
		"a profile without an image": func(r *LaunchRequest) { r.Image = nil },
		"an id that is a path":       func(r *LaunchRequest) { r.Image = &ImageRoot{ID: "../x", Driver: "overlay", Layers: names} },
		"a layer that is a path": func(r *LaunchRequest) {
			r.Image = &ImageRoot{ID: "im-1", Driver: "overlay", Layers: []string{"../../x"}}
		},
		"no layers":      func(r *LaunchRequest) { r.Image = &ImageRoot{ID: "im-1", Driver: "overlay"} },
		"another driver": func(r *LaunchRequest) { r.Image = &ImageRoot{ID: "im-1", Driver: "../x", Layers: names} },
		"no profile":     func(r *LaunchRequest) { r.Root, r.Image = "other", nil },
	} {
		bad := req
		change(&bad)
		if err := bad.validateRoot(); err == nil {
			t.Errorf("%s passes", name)
		}
	}
}

// The ids of images are nobody's else.
func TestIDPoolKeepsClearOfImages(t *testing.T) {
	if err := DefaultIDPool.Validate(); err != nil {
		t.Error(err)
	}
	for _, p := range []IDPool{{layers.IDs, 1}, {layers.IDs - 65536, 2}, {layers.IDs - 1, 1}, {layers.IDs + 65535, 1}} {
		if p.Validate() == nil {
			t.Errorf("a pool from %#x with %d ranges passes", p.Base, p.Count)
		}
	}
	if err := (IDPool{layers.IDs - 65536, 1}).Validate(); err != nil {
		t.Error(err)
	}
}
