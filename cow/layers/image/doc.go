// Package image reads container images out of archives, and takes out of their
// layers what must not reach a file system.
//
// It exists because an image is hostile data of three kinds at once: JSON that
// names digests, compressed streams that may expand without bound, and tar
// entries that may name anything. Open reads an OCI layout in a tar file, a
// docker archive or a plain tar file of a root file system; every byte that is
// used is compared with the digest by which the image names it. A Filter then
// copies each layer's tar stream entry by entry: what would leave the layer,
// confuse overlayfs or contradict itself is refused (CodeImageLayerRefused), and
// what merely has no place in a sandbox is neutralised and counted: setuid and
// setgid bits, security.* and trusted.* attributes, overlayfs's own user.overlay.*,
// device nodes and FIFOs.
//
// # What it does not promise
//
// No signature is checked: who gives the archive answers for it. Symbolic links
// are kept as they are, wherever they point; only a process inside the sandbox
// ever follows them. Entrypoint, user and working directory of the image's
// configuration are not used.
package image
