// Ociimage writes an image of directories, one for each processor, as an OCI image layout
// (image-spec, image-layout.md): without a daemon, and the same bytes each time.
//
//	ociimage -o LAYOUT -epoch SECONDS -name REF amd64=DIR arm64=DIR
//
// Each directory becomes the one layer of its image, owned by root. The image runs premix.
// skopeo, crane and `premix image add oci:LAYOUT` read the layout.
package main
