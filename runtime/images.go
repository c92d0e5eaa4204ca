package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// ImportImageRequest imports a base image. The archive is an OCI layout in a tar
// file, a docker archive, or a tar file of a root file system.
type ImportImageRequest struct {
	// Name "" takes the archive's own reference.
	Name policy.ImageName `json:"name,omitempty"`
	// Select names one of several images, by reference or digest.
	Select string             `json:"select,omitempty"`
	Driver policy.ImageDriver `json:"driver,omitempty"` // "" is the configuration's
	// Progress is for callers in the same process. May be nil.
	Progress func(RunProgress) `json:"-"`
}

// Image is an imported base image. Digest identifies what was imported.
type Image struct {
	Name      policy.ImageName    `json:"name"`
	ID        policy.AllocationID `json:"id"`
	Digest    string              `json:"digest"`
	Ref       string              `json:"ref,omitempty"`
	Format    string              `json:"format"` // oci, docker or rootfs
	Driver    policy.ImageDriver  `json:"driver"`
	Layers    int                 `json:"layers"`
	Entries   int64               `json:"entries"`
	Bytes     int64               `json:"bytes"` // of its files, layers shared with others included
	CreatedAt time.Time           `json:"created_at"`
	// Diagnostics say what of the image was neutralised.
	Diagnostics []policy.Diagnostic `json:"diagnostics,omitempty"`
}

// RootImage says which image a sandbox's root is.
type RootImage struct {
	Name   policy.ImageName   `json:"name"`
	Digest string             `json:"digest"`
	Driver policy.ImageDriver `json:"driver"`
}

// imageRecord is image-store/images/<id>/image.json.
type imageRecord struct {
	Image
	LayerNames []string `json:"layer_names"`
	Owned      bool     `json:"owned,omitempty"` // all its files have one owner
	Env        []string `json:"env,omitempty"`
}

const (
	imageFile    = "/image.json"
	maxImageFile = 1 << 20
)

// ImportImage spools an archive that is not a file, has the helper unpack it, and
// records it under its name. Until the record is complete the image is a leftover.
func (r *Runtime) ImportImage(ctx context.Context, req ImportImageRequest, archive io.Reader) (Image, error) {
	if req.Name != "" {
		if err := policy.CheckID("image", string(req.Name)); err != nil {
			return Image{}, err
		}
	}
	if req.Driver == "" {
		req.Driver = policy.ImageDriver(r.config().Images.Driver)
	}
	driver, err := policy.ParseImageDriver(string(req.Driver))
	if err != nil {
		return Image{}, err
	}
	if len(req.Select) > 512 {
		return Image{}, policy.Errorf(policy.CodeBadRequest, "runtime.image_import", "the selected image's name is too long")
	}
	f, err := r.archiveFile(ctx, archive)
	if err != nil {
		return Image{}, err
	}
	defer f.Close()
	id := policy.AllocationID(policy.NewID("im-"))
	hreq := helper.ImportImageRequest{ID: id, Driver: driver, Select: req.Select, Limits: r.config().imageLimits()}
	if req.Progress != nil {
		hreq.Progress = func(layer, layers int) {
			req.Progress(RunProgress{Phase: "unpacking layers", Done: int64(layer), Total: int64(layers)})
		}
	}
	r.importing.Store(id, true)
	defer r.importing.Delete(id)
	res, err := r.helper.ImportImage(ctx, hreq, f)
	if req.Progress != nil {
		req.Progress(RunProgress{Finished: true})
	}
	if err != nil {
		return Image{}, err
	}
	img, err := r.recordImage(ctx, req, id, driver, res)
	if err != nil || img.ID != id {
		if rerr := r.helper.RemoveImage(context.WithoutCancel(ctx), id); rerr != nil {
			r.log.Warn("an image that was not recorded is left to the ledger", "image", id, "error", rerr)
		}
		return img, err
	}
	r.event(policy.EventImageImported, string(id), map[string]string{"name": string(img.Name)})
	return img, nil
}

// archiveFile returns the archive as a regular file: itself, or a copy without a
// name, which no crash can leave behind (open(2), O_TMPFILE).
func (r *Runtime) archiveFile(ctx context.Context, archive io.Reader) (*os.File, error) {
	const op = "runtime.image_import"
	if f, ok := archive.(*os.File); ok {
		if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
			fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
			if err != nil {
				return nil, policy.AsDiagnostic(err)
			}
			return os.NewFile(uintptr(fd), "archive"), nil
		}
	}
	f, err := r.root.OpenFile(rootdir.Tmp, unix.O_TMPFILE|unix.O_RDWR, 0o600)
	if err != nil {
		return nil, policy.Errorf(policy.CodeInternal, op, "the archive cannot be stored").Because(err)
	}
	// The archive is at most as large as what it holds, give or take its headers.
	most := r.config().imageLimits().Normalize().Bytes + 1<<30
	n, err := io.Copy(f, io.LimitReader(canceled{ctx, archive}, most))
	var d *policy.Diagnostic
	switch {
	case err == nil && n == most:
		err = policy.Errorf(policy.CodeImageLimit, op, "the archive is larger than %d bytes", most)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		err = policy.Errorf(policy.CodeDiskFull, op, "the Runtime root's file system is full").Because(err)
	case ctx.Err() != nil:
		err = policy.Errorf(policy.CodeCanceled, op, "the import was canceled").Because(ctx.Err())
	case err != nil && !errors.As(err, &d):
		err = policy.Errorf(policy.CodeImageInvalid, op, "the archive did not arrive whole").Because(err)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// canceled is a reader that ends with its context.
type canceled struct {
	ctx context.Context
	r   io.Reader
}

func (c canceled) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(b)
}

// recordImage gives an unpacked image its name. The same image under the same
// name is the one that is there already.
func (r *Runtime) recordImage(ctx context.Context, req ImportImageRequest, id policy.AllocationID, driver policy.ImageDriver, res helper.ImportImageResult) (Image, error) {
	const op = "runtime.image_import"
	name := req.Name
	if name == "" {
		name = policy.ImageNameFor(res.Ref)
	}
	if name == "" {
		return Image{}, policy.Errorf(policy.CodeImageInvalid, op, "the archive gives the image no name").WithHint("Name it with --name.")
	}
	unlock, err := r.lockNames()
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	recs, err := r.imageRecords()
	if err != nil {
		return Image{}, err
	}
	for _, rec := range recs {
		if rec.Name == name && rec.Digest == res.Digest && rec.Driver == driver {
			return rec.Image, nil
		}
		if rec.Name == name {
			return Image{}, policy.Errorf(policy.CodeImageExists, op, "another image has the name %s", name).With("digest", rec.Digest)
		}
	}
	rec := imageRecord{
		Image: Image{
			Name: name, ID: id, Digest: res.Digest, Ref: res.Ref, Format: res.Format, Driver: driver, Layers: len(res.Layers),
			Entries: res.Entries, Bytes: res.Bytes, CreatedAt: r.now(), Diagnostics: res.Warnings,
		},
		LayerNames: res.Layers, Env: res.Env, Owned: res.Owned,
	}
	b, err := json.MarshalIndent(rec, "", "  ")
	if err == nil {
		err = r.root.WriteFile(rootdir.Image(string(id))+imageFile, append(b, '\n'), 0o600)
	}
	if errors.Is(err, unix.ENOSPC) {
		return Image{}, policy.Errorf(policy.CodeDiskFull, op, "the Runtime root's file system is full").Because(err)
	}
	if err != nil {
		return Image{}, policy.Errorf(policy.CodeInternal, op, "the image's record cannot be written").Because(err)
	}
	return rec.Image, r.helper.Keep(ctx, id)
}

// lockNames keeps two imports from taking one name.
func (r *Runtime) lockNames() (unlock func(), err error) {
	d, err := r.lockDir(rootdir.ImageRecords, unix.LOCK_EX)
	if err != nil {
		return nil, policy.Errorf(policy.CodeInternal, "runtime.image", "the images' records cannot be locked").Because(err)
	}
	return func() { d.Close() }, nil
}

// imageRecords reads every whole record, by name. What has none is an import
// under way, or one that recovery takes away.
func (r *Runtime) imageRecords() ([]imageRecord, error) {
	ids, err := r.imageIDs()
	if err != nil {
		return nil, err
	}
	var out []imageRecord
	for _, id := range ids {
		b, err := r.root.ReadFile(rootdir.Image(id)+imageFile, maxImageFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var rec imageRecord
		if err == nil {
			err = json.Unmarshal(b, &rec)
		}
		if err != nil {
			return nil, policy.Errorf(policy.CodeInternal, "runtime.image", "the record of the image %s cannot be read", policy.Printable(id)).Because(err)
		}
		out = append(out, rec)
	}
	slices.SortFunc(out, func(a, b imageRecord) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return out, nil
}

// imageIDs lists the record directories.
func (r *Runtime) imageIDs() ([]string, error) {
	d, err := r.root.OpenDir(rootdir.ImageRecords)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, policy.Errorf(policy.CodeInternal, "runtime.image", "the images' records cannot be listed").Because(err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, policy.Errorf(policy.CodeInternal, "runtime.image", "the images' records cannot be listed").Because(err)
	}
	return slices.DeleteFunc(names, func(n string) bool { return !policy.ValidID(n) }), nil
}

func (r *Runtime) imageRecord(name policy.ImageName) (imageRecord, error) {
	if err := policy.CheckID("image", string(name)); err != nil {
		return imageRecord{}, err
	}
	recs, err := r.imageRecords()
	if err != nil {
		return imageRecord{}, err
	}
	for _, rec := range recs {
		if rec.Name == name {
			return rec, nil
		}
	}
	return imageRecord{}, policy.Errorf(policy.CodeImageUnknown, "runtime.image", "there is no image %s", name)
}

// ListImages returns every image, by name.
func (r *Runtime) ListImages(context.Context) ([]Image, error) {
	recs, err := r.imageRecords()
	out := make([]Image, 0, len(recs))
	for _, rec := range recs {
		out = append(out, rec.Image)
	}
	return out, err
}

// GetImage returns one image.
func (r *Runtime) GetImage(_ context.Context, name policy.ImageName) (Image, error) {
	rec, err := r.imageRecord(name)
	return rec.Image, err
}

// RemoveImage removes an image that no workspace stands on.
func (r *Runtime) RemoveImage(ctx context.Context, name policy.ImageName) error {
	rec, err := r.imageRecord(name)
	if err != nil {
		return err
	}
	if err := r.helper.RemoveImage(ctx, rec.ID); err != nil {
		return err
	}
	r.event(policy.EventImageRemoved, string(rec.ID), map[string]string{"name": string(name)})
	return nil
}

// findImage turns the name in the sandbox policy into the image that it is now:
// the workspace stays on that one.
func (c *creation) findImage() error {
	name, ok := c.sandbox.Root.Image()
	if !ok {
		return nil
	}
	rec, err := c.r.imageRecord(name)
	if err != nil {
		return err
	}
	c.image = &registry.Image{ID: rec.ID, Name: rec.Name, Digest: rec.Digest, Driver: rec.Driver, Layers: rec.LayerNames, Env: rec.Env, Owned: rec.Owned}
	return nil
}

// helperImage is an allocation's image in the helper's words.
func helperImage(i *registry.Image) *helper.ImageRoot {
	if i == nil {
		return nil
	}
	return &helper.ImageRoot{ID: i.ID, Driver: i.Driver, Layers: i.Layers, Owned: i.Owned}
}

func rootImage(a registry.Allocation) *RootImage {
	if a.Image == nil {
		return nil
	}
	return &RootImage{Name: a.Image.Name, Digest: a.Image.Digest, Driver: a.Image.Driver}
}

// imageEnv are the variables of an allocation's image. Those that say who and
// where the Worker is are the sandbox's to set.
func imageEnv(a registry.Allocation) map[string]string {
	if _, named := a.SandboxPolicy.Root.Image(); !named || a.Image == nil {
		return nil
	}
	env := make(map[string]string, len(a.Image.Env))
	for _, kv := range a.Image.Env {
		k, v, _ := strings.Cut(kv, "=")
		switch k {
		case "HOME", "USER", "LOGNAME", "TMPDIR":
		default:
			if !strings.HasPrefix(k, "YOI_") {
				env[k] = v
			}
		}
	}
	return env
}

// reconcileImages makes the records and the ledger agree after a crash. A daemon
// is alone at its start: an image without a record is one that it did not finish,
// and a record without Keep is one that it did.
func (r *Runtime) reconcileImages(ctx context.Context, rep *RecoveryReport) error {
	ids, err := r.imageIDs()
	if err != nil || len(ids) == 0 {
		return err
	}
	if err := r.ledger.Sync(ctx); err != nil {
		return err
	}
	state, err := ledger.Scan(ctx, r.ledgerDir)
	if err != nil {
		return err
	}
	kept := make(map[string]bool)
	for _, h := range state.Held {
		if h.Resource.Kind == ledger.KindImage && h.Kept {
			kept[h.Resource.Owner] = true
		}
	}
	for _, id := range ids {
		if _, busy := r.importing.Load(policy.AllocationID(id)); busy || kept[id] || !r.daemon {
			continue
		}
		whole, err := r.root.Exists(rootdir.Image(id) + imageFile)
		if err == nil && whole {
			err = r.helper.Keep(ctx, policy.AllocationID(id))
		} else if err == nil {
			err = r.helper.RemoveImage(ctx, policy.AllocationID(id))
		}
		if err != nil {
			r.log.Warn("image not reconciled", "image", id, "error", err)
			rep.Diagnostics = append(rep.Diagnostics, *policy.AsDiagnostic(err))
		}
	}
	return nil
}
