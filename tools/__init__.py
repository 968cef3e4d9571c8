"""What developers of the workbench run; none of it is installed with the package."""
