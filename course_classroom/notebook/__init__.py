"""What a notebook meets: magics, sliders, packages that are missing; and how it is released."""
