package helper

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow/layers"
	"yoi.dev/yoi-runtime/egress"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// ImageRoot is an image as materialization and launch need it.
type ImageRoot struct {
	// ID is the image's own, "im-…".
	ID     policy.AllocationID `json:"id"`
	Driver policy.ImageDriver  `json:"driver"`
	// Layers are their names in the store, lowest first.
	Layers []string `json:"layers"`
	// Owned says that all its files are the Runtime root's owner's, as an ordinary
	// user imports them.
	Owned bool `json:"owned,omitempty"`
}

func (i *ImageRoot) validate() error {
	if i == nil {
		return nil
	}
	if err := policy.CheckID("image", string(i.ID)); err != nil {
		return err
	}
	if d, err := policy.ParseImageDriver(string(i.Driver)); err != nil || d != i.Driver {
		return policy.Errorf(policy.CodeBadRequest, "helper.request", "%q is no image driver", policy.Printable(string(i.Driver)))
	}
	return layers.CheckLayers(i.Layers)
}

// validateRoot holds the root profile and the image to each other.
func (r LaunchRequest) validateRoot() error {
	if err := policy.ValidateTools(r.Tools, r.Root); err != nil {
		return err
	}
	_, named := r.Root.Image()
	switch {
	case named && r.Image != nil:
		return r.Image.validate()
	case r.Image == nil && (r.Root == policy.RootSystem || r.Root == policy.RootMinimal):
		return nil
	}
	return policy.Errorf(policy.CodePolicyInvalid, "helper.launch", "%q is no root profile, or its image was not given", policy.Printable(string(r.Root)))
}

// ImportImageRequest asks for an image of an archive, under a fresh id.
type ImportImageRequest struct {
	ID     policy.AllocationID `json:"id"`
	Driver policy.ImageDriver  `json:"driver"`
	Select string              `json:"select,omitempty"`
	Limits policy.ImageLimits  `json:"limits,omitzero"`
	// Progress is for callers in the same process. May be nil.
	Progress func(layer, layers int) `json:"-"`
}

// ImportImageResult is what was imported.
type ImportImageResult struct {
	Format   string              `json:"format"`
	Digest   string              `json:"digest"`
	Ref      string              `json:"ref,omitempty"`
	Env      []string            `json:"env,omitempty"`
	Layers   []string            `json:"layers"`
	Owned    bool                `json:"owned,omitempty"`
	Bytes    int64               `json:"bytes"`
	Entries  int64               `json:"entries"`
	Warnings []policy.Diagnostic `json:"warnings,omitempty"`
}

// The attributes of a ledger.KindImage.
const (
	attrDriver = "driver"
	attrLayers = "layers" // separated by commas, lowest first
	attrOwned  = "owned"  // "true" for ImageRoot.Owned
	attrImage  = "image"  // of a ledger.KindImageReference
)

// ImportImage has yoi-layers read the archive, writes down what is to be made,
// and has it made.
func (l *Local) ImportImage(ctx context.Context, req ImportImageRequest, archive *os.File) (res ImportImageResult, err error) {
	const op = "helper.image_import"
	if err := (&ImageRoot{ID: req.ID, Driver: req.Driver, Layers: []string{strings.Repeat("0", 64)}}).validate(); err != nil {
		return res, err
	}
	if err := req.Limits.Validate(); err != nil {
		return res, err
	}
	if st, err := archive.Stat(); err != nil || !st.Mode().IsRegular() {
		return res, policy.Errorf(policy.CodeBadRequest, op, "the archive is not a regular file").Because(err)
	}
	s, err := l.openImageStore(ctx)
	if err != nil {
		return res, err
	}
	defer s.close()
	var image ledger.Resource
	calls := layers.Calls{Planned: func(p layers.Plan) ([]string, error) {
		res.Format, res.Digest, res.Ref, res.Env, res.Layers, res.Owned = p.Format, p.Digest, p.Ref, p.Env, p.Layers, !l.privileged
		image = newResource(ledger.KindImage, req.ID, rootdir.Image(string(req.ID)))
		image.Attrs = map[string]string{attrDriver: string(req.Driver), attrLayers: strings.Join(p.Layers, ",")}
		if res.Owned {
			image.Attrs[attrOwned] = "true"
		}
		return l.planImage(ctx, image)
	}}
	if req.Progress != nil {
		calls.Progress = func(p layers.Progress) { req.Progress(p.Layer, p.Layers) }
	}
	done, err := s.run(ctx, layers.Request{
		Op: layers.OpImport, Driver: req.Driver, Select: req.Select, Limits: req.Limits, Single: !l.privileged,
	}, !l.privileged, archive, calls)
	if err == nil {
		res.Bytes, res.Entries, res.Warnings = done.Bytes, done.Entries, done.Warnings
		return res, nil
	}
	if image.ID == "" {
		return res, err // nothing was made
	}
	if uerr := s.discard(context.WithoutCancel(ctx), image); uerr != nil {
		l.log.Warn("half-made image left to the ledger", "image", req.ID, "error", uerr)
	}
	return res, err
}

// planImage writes an image down before it is made, makes its record's directory,
// and says which of its layers are there and whole.
func (l *Local) planImage(ctx context.Context, image ledger.Resource) ([]string, error) {
	whole, err := l.heldLayers(ctx, image, func(h ledger.Held) bool { return h.Kept })
	if err != nil {
		return nil, err
	}
	if err := l.intend(ctx, policy.AllocationID(image.Owner), image); err != nil {
		return nil, err
	}
	d, err := l.root.Mkdir(image.Path, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil, policy.Errorf(policy.CodeConflict, "helper.image_import", "the image %s exists already", image.Owner)
	}
	if err != nil {
		return nil, diskError("helper.image_import", err)
	}
	defer d.Close()
	return whole, l.ledger.Done(image.ID, identify(d))
}

// heldLayers are the layers of an image that others which are held have, too.
func (l *Local) heldLayers(ctx context.Context, image ledger.Resource, counts func(ledger.Held) bool) ([]string, error) {
	state, err := l.scan(ctx)
	if err != nil {
		return nil, err
	}
	own := strings.Split(image.Attrs[attrLayers], ",")
	var shared []string
	for _, h := range state.Held {
		r := h.Resource
		if r.Kind != ledger.KindImage || r.ID == image.ID || !counts(h) ||
			r.Attrs[attrDriver] != image.Attrs[attrDriver] || r.Attrs[attrOwned] != image.Attrs[attrOwned] {
			continue
		}
		for _, n := range strings.Split(r.Attrs[attrLayers], ",") {
			if slices.Contains(own, n) && !slices.Contains(shared, n) {
				shared = append(shared, n)
			}
		}
	}
	return shared, nil
}

// scan reads the ledger's state, this process' latest records included. Images are
// the Runtime root's, so the streams of all roles count: one that the owner's own
// commands imported may be used and removed through this helper.
func (l *Local) scan(ctx context.Context) (*ledger.State, error) {
	if err := l.ledger.Sync(ctx); err != nil {
		return nil, err
	}
	return ledger.Scan(ctx, l.ledgerDir)
}

// imageLock opens one of the store's locks, which belong to the Runtime root's
// owner whoever makes them.
func (l *Local) imageLock(rel string) (*os.File, error) {
	f, err := l.root.OpenFile(rel, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil || !l.privileged {
		return f, err
	}
	if err := f.Chown(l.root.UID, l.root.GID); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// RemoveImage takes an image away. An interrupted removal goes on at the next
// call or recovery.
func (l *Local) RemoveImage(ctx context.Context, id policy.AllocationID) error {
	const op = "helper.image_remove"
	if err := policy.CheckID("image", string(id)); err != nil {
		return err
	}
	s, err := l.openImageStore(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	image, err := l.retireImage(ctx, id)
	if err != nil {
		return err
	}
	if image.ID == "" {
		return policy.Errorf(policy.CodeImageUnknown, op, "there is no image %s", id)
	}
	return s.discard(ctx, image)
}

// discard removes an image and writes it off.
func (s *imageStore) discard(ctx context.Context, image ledger.Resource) error {
	if err := s.removeImage(ctx, image); err != nil {
		return err
	}
	if err := s.l.release(policy.AllocationID(image.Owner), image); err != nil {
		return err
	}
	return s.l.ledger.Sync(ctx)
}

// retireImage decides that an image goes: no allocation stands on it, and none
// can from here on, since its record's directory is gone.
func (l *Local) retireImage(ctx context.Context, id policy.AllocationID) (image ledger.Resource, err error) {
	unlock, err := l.imageUse(unix.LOCK_EX)
	if err != nil {
		return image, err
	}
	defer unlock()
	state, err := l.scan(ctx)
	if err != nil {
		return image, err
	}
	for _, h := range state.Held {
		switch r := h.Resource; {
		case r.Kind == ledger.KindImage && r.Owner == string(id):
			image = r
		case r.Kind == ledger.KindImageReference && r.Attrs[attrImage] == string(id):
			return image, policy.Errorf(policy.CodeImageInUse, "helper.image_remove", "the execution workspace %s stands on the image", r.Owner).With("workspace", r.Owner)
		}
	}
	if image.ID == "" {
		return image, nil
	}
	if err := l.ledger.Unkeep(ctx, string(id)); err != nil {
		return image, err
	}
	return image, l.removeRecord(ctx, image)
}

// removeRecord takes an image's record directory away, durably.
func (l *Local) removeRecord(ctx context.Context, image ledger.Resource) error {
	err := l.checkIdentity(image)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = l.removePath(ctx, image.Path)
	}
	if err != nil {
		return diskError("helper.image_remove", err)
	}
	d, err := l.root.OpenDir(rootdir.ImageRecords)
	if err != nil {
		return diskError("helper.image_remove", err)
	}
	defer d.Close()
	return diskError("helper.image_remove", d.Sync())
}

// recoveryWait is how long recovery waits for the image store: long enough for a
// yoi-layers whose caller has died to notice, not for an import of somebody else.
const recoveryWait = 5 * time.Second

// removeImage is recovery's way to remove what is left of an image.
func (l *Local) removeImage(ctx context.Context, image ledger.Resource) error {
	wait, cancel := context.WithTimeout(ctx, recoveryWait)
	defer cancel()
	s, err := l.openImageStore(wait)
	if err != nil && wait.Err() != nil && ctx.Err() == nil {
		return policy.Errorf(policy.CodeCleanupIncomplete, "helper.image_remove", "the image %s stays until the image store is free", image.Owner).Because(err)
	}
	if err != nil {
		return err
	}
	defer s.close()
	return s.removeImage(ctx, image)
}

// imageStore is the store while its lock is held.
type imageStore struct {
	l    *Local
	lock *os.File
}

// openImageStore makes the store's directories if needed and waits for whoever
// is at work in it: its lock is held by yoi-layers, too, so that a helper that
// died does not leave an import behind which goes on.
func (l *Local) openImageStore(ctx context.Context) (_ *imageStore, err error) {
	const op = "helper.image_store"
	s := &imageStore{l: l}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	for _, rel := range []string{rootdir.Images, rootdir.ImageRecords} { // the layers' come with the work
		d, err := l.root.Ensure(rel)
		if err != nil {
			return nil, diskError(op, err)
		}
		d.Close()
	}
	if s.lock, err = l.imageLock(rootdir.ImageLock); err != nil {
		return nil, diskError(op, err)
	}
	for {
		err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, policy.Errorf(policy.CodeInternal, op, "the image store's lock cannot be taken").Because(err)
		}
		select { // no event tells of a lock's release
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, policy.Errorf(policy.CodeCanceled, op, "waiting for the image store was canceled").Because(ctx.Err())
		}
	}
	return s, nil
}

// layersDir makes the directory of the layers. What has the ids of images lies in
// one that belongs to the ids that yoi-layers has.
func (l *Local) layersDir(owned bool) (string, error) {
	rel := rootdir.ImageLayers
	if owned {
		rel = rootdir.ImageOwned
	}
	d, err := l.root.Ensure(rel)
	if err != nil {
		return "", err
	}
	defer d.Close()
	if owned {
		return rel, nil
	}
	return rel, d.Chown(layers.IDs, layers.IDs)
}

func (s *imageStore) close() {
	if s.lock == nil {
		return
	}
	// A child of another launch may have a copy of the descriptor for a moment.
	_ = unix.Flock(int(s.lock.Fd()), unix.LOCK_UN) // closing follows anyway
	s.lock.Close()
}

// run starts yoi-layers on the store. Root passes the layers' directory as a
// detached mount, since the ids that the program gets cannot walk there, and maps
// what belongs to the Runtime root's owner to them.
func (s *imageStore) run(ctx context.Context, req layers.Request, owned bool, archive *os.File, calls layers.Calls) (layers.Done, error) {
	const op = "helper.image_store"
	l := s.l
	if !owned && !l.privileged {
		return layers.Done{}, rootsImage(op)
	}
	dir, err := l.layersDir(owned)
	if err != nil {
		return layers.Done{}, diskError(op, err)
	}
	c := layers.Config{Program: l.layersProgram(), Privileged: l.privileged, Lock: s.lock, Archive: archive}
	if !l.privileged {
		req.StorePath, req.StoreBeneath = l.root.Path, dir
		return layers.Run(ctx, c, req, calls)
	}
	var idmap *os.File
	if owned {
		if idmap, err = ownerTo(l.root, layers.IDs); err != nil {
			return layers.Done{}, err
		}
		defer idmap.Close()
	}
	mount, err := mounts.CloneDetached(l.root.Dir, dir, mounts.Attr{NoSuid: true, NoDev: true, NoExec: true}, idmap, false)
	if err != nil {
		return layers.Done{}, err
	}
	defer mount.Close()
	c.Store = mount
	return layers.Run(ctx, c, req, calls)
}

// ownerTo makes a user namespace in which the Runtime root's owner stands for one
// host id.
func ownerTo(root *rootdir.Root, id uint32) (*os.File, error) {
	return mounts.UserNS(
		[]mounts.IDMap{{Inside: uint32(root.UID), Outside: id, Count: 1}},
		[]mounts.IDMap{{Inside: uint32(root.GID), Outside: id, Count: 1}})
}

// rootsImage refuses what only root can do.
func rootsImage(op string) error {
	return policy.Errorf(policy.CodeUnsupported, op, "the image was imported by root, with owners that an ordinary user cannot have").
		WithHint("Import it again under another name, or use it through the daemon.")
}

func (l *Local) layersProgram() string {
	if l.layersProg != "" {
		return l.layersProg
	}
	return layers.Program()
}

// imagesCheck says whether images can be imported and removed; running in one
// takes no program.
func (l *Local) imagesCheck() Check {
	if err := unix.Access(l.layersProgram(), unix.X_OK); err != nil {
		return Check{"images", "degraded", "yoi-layers is not beside the other programs: no image can be imported or removed", "install yoi-layers, which make build puts into bin/"}
	}
	return Check{Name: "images", State: "ok", Message: "base images can be imported: OCI layouts, docker archives, root file systems"}
}

// removeImage removes an image's record directory and those of its layers that
// no other image has.
func (s *imageStore) removeImage(ctx context.Context, image ledger.Resource) error {
	l := s.l
	if err := l.removeRecord(ctx, image); err != nil {
		return err
	}
	shared, err := l.heldLayers(ctx, image, func(ledger.Held) bool { return true })
	if err != nil {
		return err
	}
	driver := policy.ImageDriver(image.Attrs[attrDriver])
	var gone []string
	for _, n := range slices.Backward(strings.Split(image.Attrs[attrLayers], ",")) {
		if slices.Contains(shared, n) {
			continue
		}
		gone = append(gone, n)
	}
	if len(gone) == 0 {
		return nil
	}
	_, err = s.run(ctx, layers.Request{Op: layers.OpRemove, Driver: driver, Layers: gone}, image.Attrs[attrOwned] == "true", nil, layers.Calls{})
	return err
}

// imageUse takes the lock under which images gain and lose users.
func (l *Local) imageUse(how int) (unlock func(), err error) {
	f, err := l.imageLock(rootdir.ImageUseLock)
	if err != nil {
		return nil, diskError("helper.image_use", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), how)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, policy.Errorf(policy.CodeInternal, "helper.image_use", "the image store's lock cannot be taken").Because(err)
		}
	}
	return func() {
		_ = unix.Flock(int(f.Fd()), unix.LOCK_UN) // closing follows anyway
		f.Close()
	}, nil
}

// intendOnImage writes an allocation's resources down, and with them that it
// stands on its image, which then cannot be removed.
func (l *Local) intendOnImage(ctx context.Context, req MaterializeRequest, rs *[]ledger.Resource) error {
	if req.Image == nil {
		return l.intend(ctx, req.AllocationID, *rs...)
	}
	unknown := policy.Errorf(policy.CodeImageUnknown, "helper.materialize", "the image is not there any more")
	unlock, err := l.imageUse(unix.LOCK_SH)
	if errors.Is(err, fs.ErrNotExist) {
		return unknown
	}
	if err != nil {
		return err
	}
	defer unlock()
	if ok, err := l.root.Exists(rootdir.Image(string(req.Image.ID))); err != nil || !ok {
		return unknown.Because(err)
	}
	ref := newResource(ledger.KindImageReference, req.AllocationID, "")
	ref.Attrs = map[string]string{attrImage: string(req.Image.ID)}
	*rs = append(*rs, ref)
	return l.intend(ctx, req.AllocationID, *rs...)
}

// imageRoot is the root made of an image: its layers, and what of /etc is ours to
// say. Without a network there are no name servers, whatever the image has.
func imageRoot(req LaunchRequest, host *hostRoot, src sources) (ops []mounts.Op, roots []mounts.Source, err error) {
	store := rootdir.ImageLayers
	if req.Image.Owned {
		store = rootdir.ImageOwned
	}
	for _, dir := range layers.Dirs(req.Image.Driver, req.Image.Layers) {
		s, err := src.image(store+"/"+dir, req.Image.Owned)
		if err != nil {
			return nil, nil, err
		}
		roots = append(roots, s)
	}
	var resolv []byte
	if req.HostNetwork {
		resolv = host.file("/etc/resolv.conf")
	}
	if req.Egress != nil {
		if _, server := egress.Hosts(req.Egress.Network, req.Egress.Secrets); server.IsValid() {
			return nil, roots, nil // generatedEtc has it
		}
	}
	return []mounts.Op{mounts.File{Target: "/etc/resolv.conf", Mode: 0o644, Content: resolv}}, roots, nil
}

// image implements sources for a directory of the image store.
func (a *attempt) image(rel string, owned bool) (mounts.Source, error) {
	attr := mounts.Attr{ReadOnly: true, NoSuid: true, NoDev: true}
	if !a.l.privileged {
		if !owned {
			return mounts.Source{}, rootsImage("helper.launch")
		}
		return a.source(rel, attr)
	}
	idmap, err := a.l.ranges.imageIDMap(a.idRange, a.l.root, owned)
	if err != nil {
		return mounts.Source{}, err
	}
	m, err := mounts.CloneDetached(a.l.root.Dir, rel, attr, idmap, false)
	if errors.Is(err, fs.ErrNotExist) {
		return mounts.Source{}, policy.Errorf(policy.CodeImageUnknown, "helper.launch", "a layer of the image is missing").Because(err)
	}
	if err != nil {
		return mounts.Source{}, err
	}
	return mounts.Source{Mount: a.keep(m)}, nil
}

// image serves the two operations on images.
func (cn *conn) image(ctx context.Context, req request, files []*os.File) (any, []*os.File, error) {
	if req.Op == opImageRemove {
		var body allocationBody
		if err := decodeBody(req.Body, &body); err != nil {
			return nil, nil, err
		}
		return nil, nil, cn.s.Helper.RemoveImage(ctx, body.AllocationID)
	}
	var body ImportImageRequest
	if err := decodeBody(req.Body, &body); err != nil {
		return nil, nil, err
	}
	if len(files) != 1 {
		return nil, nil, policy.Errorf(policy.CodeBadRequest, "helper.image_import", "%d descriptors came instead of one", len(files))
	}
	r, err := cn.s.Helper.ImportImage(ctx, body, files[0])
	return r, nil, err
}

// ImportImage sends the archive as a descriptor: the helper gets no path.
func (r *Remote) ImportImage(ctx context.Context, req ImportImageRequest, archive *os.File) (res ImportImageResult, err error) {
	files, err := r.call(ctx, opImageImport, req, []*os.File{archive}, &res)
	closeAll(files)
	return res, err
}

func (r *Remote) RemoveImage(ctx context.Context, id policy.AllocationID) error {
	return r.callPlain(ctx, opImageRemove, allocationBody{id}, nil)
}
